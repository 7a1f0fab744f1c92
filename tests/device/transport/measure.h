// How fast calls of a communicator are on a device.
#pragma once

#include <string>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace device_transport {

/// Rank 0 prints the times of gathers and of sums, alone and beside matrix
/// products, in one line that begins with the name of the transport.
void measure(const tessera::World& world, tessera::Communicator& communicator,
             const std::string& transport);

}  // namespace device_transport
