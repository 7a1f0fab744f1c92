// How many processors this process may use.
#pragma once

#include <string_view>

namespace tessera::launch {

/// Processors in this process's affinity mask, or fewer where a container's
/// quota (cgroup version 2) allows less.
[[nodiscard]] int num_usable_processors();

/// The whole processors that a cgroup's cpu.max grants, rounded up: 2 for
/// "150000 100000". 0 where it sets no limit ("max 100000") or is not legible.
[[nodiscard]] int processors_of_quota(std::string_view cpu_max);

}  // namespace tessera::launch
