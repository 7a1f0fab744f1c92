// What a training step does to memory, as resident_bytes.h counts it: units,
// and which of them forward uses when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/shard/backward_overlap.h"
#include "tessera/shard/unit_memory.h"

namespace tessera {

/// Whether the backward of a visit needs the parameters: that of an embedding
/// does not.
enum class BackwardReads { parameters, nothing };

/// One use of a unit by forward. Every parameter that is trained belongs to one
/// visit of its unit: the last that uses it, which backward comes to first.
struct UnitVisit {
  size_t unit = 0;
  int64_t gradient_bytes = 0;  // of those, whole, in compute dtype
  // Of parameters that belong to a later visit, as of a matrix that embedding
  // and head share: a second gradient, added to the first.
  int64_t added_bytes = 0;
  BackwardReads backward_reads = BackwardReads::parameters;
  // Gradients of these parameters that an earlier backward left, whole.
  int64_t waiting_bytes = 0;
  int64_t kept_bytes = 0;       // activations from forward to backward
  int64_t again_bytes = 0;      // ... that backward makes, and frees with them
  int64_t offloaded_bytes = 0;  // of what is kept: on the host in between
};

/// What the loss adds after the last visit.
struct LossMemory {
  int64_t kept_bytes = 0;  // from forward to backward
  int64_t peak_bytes = 0;  // the most, when forward ends or backward begins
  int64_t left_bytes = 0;  // in the backward of the last visit: its gradient
};

struct StepMemory {
  std::vector<UnitMemory> units = {};
  std::vector<UnitVisit> visits = {};
  int64_t optimizer_bytes = 0;  // for Adam twice the shards that are trained
  ReduceBuffers reduce_buffers = ReduceBuffers::until_end;
  size_t prefetch = 0;   // FullyShardOptions::prefetch
  int64_t replicas = 1;  // HSDP
  BackwardOverlap backward_overlap = BackwardOverlap::full;
  double visits_of_a_copy = 1;  // of offloaded bytes: CopySchedule
  Masters masters = Masters::on_device;
  OptimizerStep optimizer_step = OptimizerStep::after_backward;
  LossMemory loss = {};
};

}  // namespace tessera
