#include "tessera/mesh/group_over.h"

#include "tessera/base/error.h"

namespace tessera {

distributed::ProcessGroup group_over(const DeviceMesh& mesh,
                                     const distributed::ProcessGroup& group,
                                     const char* who, const char* what) {
  require<InvalidArgument>(mesh.defined() != group.defined(), [&] {
    return str(who, ": give a mesh or a group, and not both.");
  });
  if (group.defined()) {
    require<InvalidArgument>(group.is_member(), [&] {
      return str(who, ": this rank is no member of '", group.name(),
                 "'; call it on its members alone.");
    });
    return group;
  }
  require<InvalidArgument>(mesh.num_axes() == 1, [&] {
    return str(who, ": the mesh is ", mesh.describe(),
               "; give one axis of it: mesh[\"", mesh.axes().front(), "\"].");
  });
  return distributed::new_group(
      mesh.world(), mesh.ranks(),
      {.description = what, .callers = distributed::Callers::members});
}

}  // namespace tessera
