// How the tokens of a step are cut: ranks, micro-batches, windows.
//
//   tokens_per_step 48, seq 4, batch 2, 2 ranks: 12 windows, 3 micro-batches
//
//   window      0 1 | 2 3 | 4 5 | 6 7 | 8 9 | 10 11
//   rank         0  |  1  |  0  |  1  |  0  |   1
//   micro-batch     0     |     1     |     2
//
// So a run takes the same windows in each step at any number of ranks.
#pragma once

#include <cstdint>

#include "tessera/train/train_config.h"

namespace tessera::train {

struct StepShape {
  int64_t batch = 1;  // windows of one forward of one rank
  int64_t seq = 1;    // tokens of a window
  int64_t world_size = 1;
  int64_t micro_batches = 1;  // of one rank

  [[nodiscard]] int64_t windows() const {
    return batch * world_size * micro_batches;
  }
  [[nodiscard]] int64_t tokens() const { return windows() * seq; }
};

/// Errors: Failure (uneven_batch) for tokens_per_step that batch, sequence and
///         ranks do not divide.
[[nodiscard]] StepShape step_shape(const TrainConfig& config, int world_size);

}  // namespace tessera::train
