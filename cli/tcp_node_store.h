// The store of several launchers, as LibTorch's TCPStore: the ranks use it too.
#pragma once

#include "cli/launch/local_address.h"
#include "cli/launch/node_store.h"

namespace tessera::cli {

enum class StoreRole {
  host,    // holds the store, or fails when the port is taken
  join,    // finds it at another launcher's
  either,  // holds it unless another launcher of this machine does
};

/// Errors: LaunchError (kExitPortTaken) for StoreRole::host when the port is
///         taken; StoreGone when there is no store to join yet.
[[nodiscard]] launch::OpenNodeStore tcp_node_store(
    const launch::Endpoint& endpoint, StoreRole role);

}  // namespace tessera::cli
