// How many processors this process may use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::launch {

/// Processors in this process's affinity mask, or fewer where a container's
/// quota (cgroup version 2) allows less.
[[nodiscard]] int num_usable_processors();

/// The whole processors that a cgroup's cpu.max grants, rounded up: 2 for
/// "150000 100000". 0 where it sets no limit ("max 100000") or is not legible.
[[nodiscard]] int processors_of_quota(std::string_view cpu_max);

/// How many CUDA devices this process may use: the entries of `visible`, the
/// value of CUDA_VISIBLE_DEVICES, up to the first that is none; without it, the
/// files nvidia0, nvidia1, ... in `devices`. Opens no device.
[[nodiscard]] int num_cuda_devices(const std::optional<std::string>& visible,
                                   const std::string& devices = "/dev");

}  // namespace tessera::launch
