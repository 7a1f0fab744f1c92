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

#include "tessera/shard/step_memory.h"

namespace tessera {

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
