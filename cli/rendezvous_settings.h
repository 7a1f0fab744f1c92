// What --rdzv-conf holds: key=value,key=value. Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "cli/launch/node_group.h"

namespace tessera::cli {

struct RendezvousSettings {
  std::optional<std::chrono::milliseconds> join_timeout = {};  // or timeout
  std::optional<std::chrono::milliseconds> last_call = {};
  std::optional<std::chrono::milliseconds> keep_alive_interval = {};
  std::optional<int> keep_alive_max_attempt = {};
  std::optional<bool> is_host = {};  // holds the store

  void apply_to(launch::NodeGroupOptions& group) const;
};

/// Errors: InvalidArgument for a key that has no meaning here, and for a value
///         that is none.
[[nodiscard]] RendezvousSettings parse_rendezvous_settings(
    const std::string& text);

}  // namespace tessera::cli
