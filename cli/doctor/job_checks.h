// What Tessera is made of, and how a job would start here.
#pragma once

#include <string>

#include "cli/doctor/report.h"

namespace tessera::cli::doctor {

inline constexpr int kExitVersions = 20;
inline constexpr int kExitLauncher = 21;
inline constexpr int kExitDevices = 22;
inline constexpr int kExitGloo = 27;
inline constexpr int kExitNccl = 28;
inline constexpr int kExitStore = 29;

[[nodiscard]] Check check_versions();
/// Which launcher the environment speaks of, and why that one.
[[nodiscard]] Check check_launcher();
[[nodiscard]] Check check_devices();
[[nodiscard]] Check check_gloo();
[[nodiscard]] Check check_nccl();

/// Serves a store on this machine and reaches it; or, with "host:port", reaches
/// one that is there.
[[nodiscard]] Check check_store(const std::string& address);

}  // namespace tessera::cli::doctor
