#include "tessera/shard/mesh_roles.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

bool says(const std::string& axis, std::string_view word) {
  return axis.find(word) != std::string::npos;
}

bool says_replicate(const std::string& axis) { return says(axis, "replicate"); }

bool says_shard(const std::string& axis) {
  return says(axis, "shard") || says(axis, "fsdp");
}

// 0 or 1: the axis of a 2-D mesh that replicates.
size_t replicating(const DeviceMesh& mesh, const std::string& replicate_axis) {
  const auto& axes = mesh.axes();
  if (!replicate_axis.empty()) {
    require<InvalidArgument>(mesh.has_axis(replicate_axis), [&] {
      return str("fully_shard: replicate_axis '", replicate_axis,
                 "' is no axis of the mesh ", mesh.describe(), ".");
    });
    return axes[0] == replicate_axis ? 0 : 1;
  }
  const bool first = says_replicate(axes[0]) || says_shard(axes[1]);
  const bool second = says_replicate(axes[1]) || says_shard(axes[0]);
  require<InvalidArgument>(!(first && second), [&] {
    return str("fully_shard: the names of the mesh ", mesh.describe(),
               " do not say along which axis parameters are replicated. Set "
               "FullyShardOptions::replicate_axis.");
  });
  return second ? 1 : 0;
}

}  // namespace

MeshRoles mesh_roles(const DeviceMesh& mesh,
                     const std::string& replicate_axis) {
  require<InvalidArgument>(mesh.num_axes() <= 2, [&] {
    return str("fully_shard: the mesh ", mesh.describe(), " has ",
               mesh.num_axes(),
               " axes; expected one (sharded) or two (sharded and replicated). "
               "Give a slice of it, such as mesh[\"",
               mesh.axes().back(), "\"].");
  });
  if (mesh.num_axes() == 1) {
    require<InvalidArgument>(replicate_axis.empty(), [&] {
      return str("fully_shard: replicate_axis '", replicate_axis,
                 "' needs a mesh of two axes, but got ", mesh.describe(),
                 ". To replicate over all ranks call replicate().");
    });
    return {.all = mesh, .shard = mesh, .replicate = {}};
  }
  const size_t replicate = replicating(mesh, replicate_axis);
  return {.all = mesh,
          .shard = mesh[mesh.axes()[1 - replicate]],
          .replicate = mesh[mesh.axes()[replicate]]};
}

}  // namespace tessera
