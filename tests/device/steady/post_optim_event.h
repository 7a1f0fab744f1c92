// An optimizer that steps on a stream of its own.
#pragma once

#include "tessera/mesh/device_mesh.h"

namespace device_steady {

/// Weights are written late on another stream, and a forward is issued at once:
/// with set_post_optim_event it sees them, of a full parameter that is cast and
/// of one that is the shard. Prints a line for each; returns how many failed.
int check_post_optim_event(const tessera::DeviceMesh& mesh);

}  // namespace device_steady
