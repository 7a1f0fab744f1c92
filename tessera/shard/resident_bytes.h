// How many bytes the engine keeps on one rank in the course of a training step:
// shards, optimizer state, gathered parameters, gradients on their way, and the
// buffers of reductions; and what the caller says of activations. Pure.
//
// A step is a list of visits: which unit is used when, in forward. Backward
// goes through it from the end. An embedding and a head in the root, and two
// blocks:
//
//   visit         root (embedding)   block 0        block 1        root (head)
//   forward       root               root + 0       root + 1       root
//   backward      root, g(root)      root + 0, g(0) root + 1, g(1) root,
//   g(head)
//                 <------------------------------------------------
//
// Here `root` and the numbers are gathered parameters and g(...) are gradients
// of full parameters, which are held until those of their unit are complete.
// Then the unit is freed and its reduction takes
//
//   CPU    world_size * s for the input, (world_size - 1) * s for what the
//   peers
//          send, s for the result; s are the bytes of a shard in reduce dtype.
//          All of it until the end of backward.
//   CUDA   world_size * s for the input until the next reduction begins, and s
//          for the result.
//
// With replicas (HSDP) the result is summed over them in place; a CPU takes
// (replicas - 1) * s more for what they send, but no longer what the peers of
// the shard axis sent. The result becomes the gradient of the shards;
// offloaded, it is copied to the host, and the device has it until the end of
// backward.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

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
  int64_t kept_bytes = 0;   // activations from forward to backward
  int64_t again_bytes = 0;  // ... that backward makes, and frees with them
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
  Masters masters = Masters::on_device;
  OptimizerStep optimizer_step = OptimizerStep::after_backward;
  LossMemory loss = {};
};

/// Of the device; with masters on the host these are not in it.
struct ResidentBytes {
  int64_t between_steps = 0;   // shards and optimizer state
  int64_t after_forward = 0;   // ... and what is kept for backward
  int64_t after_backward = 0;  // ... and the gradients of the shards that did
                               // not step yet
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;
  int64_t gathered_peak = 0;              // of full parameters alone
  int64_t parts_peak = 0;                 // of AfterForward::kept_in_parts
  std::vector<int64_t> num_gathers = {};  // by unit
  std::vector<int64_t> num_gathers_of_parts = {};  // of these, among keepers

  [[nodiscard]] int64_t peak() const {
    return forward_peak > backward_peak ? forward_peak : backward_peak;
  }
};

/// A step that starts without gradients of shards, synchronizes, and comes
/// after one alike, so that prefetching knows the order. A world of one
/// prefetches nothing.
///
/// Errors: InvalidArgument for a visit or a parent that names no unit.
/// Cost:   O(visits * units); allocates no tensor.
[[nodiscard]] ResidentBytes resident_bytes(const StepMemory& step);

}  // namespace tessera
