// How many bytes the engine keeps on one rank in the course of a training step:
// shards, optimizer state, gathered parameters, gradients on their way, and the
// buffers of reductions. Activations are not among them. Pure.
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
// The result becomes the gradient of the shards.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/shard/flat_layout.h"

namespace tessera {

/// Parameters of a unit that travel in one buffer.
struct GroupMemory {
  FlatLayout layout;
  int64_t master_bytes = 4;   // of an element of the shards
  int64_t compute_bytes = 4;  // ... of the full parameters
  int64_t reduce_bytes = 4;   // ... of the sum over ranks
};

enum class AfterForward { freed, kept };

struct UnitMemory {
  std::vector<GroupMemory> groups = {};
  AfterForward after_forward = AfterForward::freed;
  std::optional<size_t> parent = {};  // the unit around this one
};

/// One use of a unit by forward. Every parameter that is trained belongs to one
/// visit of its unit: the first that uses it.
struct UnitVisit {
  size_t unit = 0;
  int64_t gradient_bytes = 0;  // of those, whole, in compute dtype
};

enum class ReduceBuffers { until_end, until_next };  // CPU, CUDA

struct StepMemory {
  std::vector<UnitMemory> units = {};
  std::vector<UnitVisit> visits = {};
  int64_t optimizer_bytes = 0;  // for Adam twice the shards that are trained
  ReduceBuffers reduce_buffers = ReduceBuffers::until_end;
};

struct ResidentBytes {
  int64_t between_steps = 0;   // shards and optimizer state
  int64_t after_backward = 0;  // ... and the gradients of the shards
  int64_t forward_peak = 0;
  int64_t backward_peak = 0;

  [[nodiscard]] int64_t peak() const {
    return forward_peak > backward_peak ? forward_peak : backward_peak;
  }
};

/// A step that starts without gradients, synchronizes, and in which backward
/// reads the parameters of every visit again.
///
/// Errors: InvalidArgument for a visit or a parent that names no unit.
/// Cost:   O(visits * units); allocates no tensor.
[[nodiscard]] ResidentBytes resident_bytes(const StepMemory& step);

}  // namespace tessera
