// The communicators and streams that all groups of one mesh share.
//
//                   1-D mesh         2-D mesh (HSDP)
//   gather, reduce  all ranks        along the shard axis
//   norm            all ranks        along the shard axis
//   all_reduce      none             along the replicate axis
//   control         all ranks        all ranks of both axes
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "tessera/comm/communicator.h"
#include "tessera/shard/mesh_roles.h"

namespace tessera {

struct ShardLanes {
  std::shared_ptr<Communicator> gather;
  std::shared_ptr<Communicator> reduce;
  std::shared_ptr<Communicator> norm;        // sums over a parameter's parts
  std::shared_ptr<Communicator> all_reduce;  // null without replicas
  std::shared_ptr<Communicator> control;
  c10::Device device = c10::kCPU;
  c10::Stream gather_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  c10::Stream reduce_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  c10::Stream all_reduce_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};

  /// Among the ranks that a parameter is cut over.
  [[nodiscard]] int rank() const { return gather->rank(); }
  [[nodiscard]] int size() const { return gather->size(); }
  [[nodiscard]] bool same_ranks(const ShardLanes& other) const {
    return gather == other.gather && control == other.control;
  }
  /// All ranks whose gradients are averaged.
  [[nodiscard]] int num_ranks() const { return control->size(); }
};

/// Makes the communicators of a mesh when it is first used. Collective.
[[nodiscard]] std::shared_ptr<const ShardLanes> make_lanes(
    const MeshRoles& roles);

}  // namespace tessera
