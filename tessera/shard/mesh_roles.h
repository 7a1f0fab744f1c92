// What each axis of a mesh does to parameters: cut them, or hold copies (HSDP).
//
//   (dp_replicate: 2, dp_shard: 4)   4 ranks hold a parameter's parts,
//                                    2 such groups hold the same
#pragma once

#include <string>

#include "tessera/mesh/device_mesh.h"

namespace tessera {

struct MeshRoles {
  DeviceMesh all;
  DeviceMesh shard;      // 1-D
  DeviceMesh replicate;  // 1-D, or undefined: no replicas
};

/// A 1-D mesh is cut along its axis. Of a 2-D mesh one axis replicates:
/// `replicate_axis` if it is not empty, else the axis whose name says so
/// ("replicate" is part of one, or "shard" or "fsdp" of the other), else the
/// first, as in FSDP2.
/// Errors: InvalidArgument for another number of axes, an unknown
///         `replicate_axis` or names that contradict each other.
[[nodiscard]] MeshRoles mesh_roles(const DeviceMesh& mesh,
                                   const std::string& replicate_axis);

}  // namespace tessera
