// The ranks that a wrapper works on: a mesh of one axis, or a group.
#pragma once

#include "tessera/comm/process_group.h"
#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// `group`, or a new one of the ranks of `mesh`, whose members call this alike.
///
/// who: in messages; what: of the new group in tables.
/// Errors: InvalidArgument for a mesh and a group, neither, a mesh of several
///         axes, or a group that this rank is not in.
[[nodiscard]] distributed::ProcessGroup group_over(
    const DeviceMesh& mesh, const distributed::ProcessGroup& group,
    const char* who, const char* what);

}  // namespace tessera
