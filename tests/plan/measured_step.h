// What one rank of the trainer holds in the course of a step, measured: the
// bytes of all tensors on a CPU, each rank a thread whose allocations are
// counted.
#pragma once

#include <cstdint>

#include "tessera/train/model_presets.h"
#include "tessera/train/train_config.h"

namespace tessera::train::test {

struct MeasuredSetup {
  ModelConfig model = {};
  int ranks = 2;
  int64_t batch = 1;
  ShardConfig how = {};
};

/// Bytes.
struct MeasuredStep {
  int64_t model = 0;      // shards, and tables that are no parameters
  int64_t optimizer = 0;  // what its first step leaves
  int64_t gradients = 0;
  int64_t gathered = 0;     // full parameters, the most at once
  int64_t travelling = 0;   // beside those of one unit, while it is gathered
  int64_t activations = 0;  // and of the loss, and kept parts: all that forward
                            // leaves, but for full parameters
  int64_t loss_peak = 0;  // of these, until the backward of the loss is through
  int64_t reducing = 0;   // the most from the embedding's backward to the end
  int64_t waiting = 0;    // what a micro-batch that is not the last leaves
  int64_t peak = 0;       // of a whole step
  int64_t num_gathers = 0;  // of groups
  int64_t num_reduces = 0;
};

/// Of the last rank, once every order is known.
[[nodiscard]] MeasuredStep measure_step(const MeasuredSetup& setup);

}  // namespace tessera::train::test
