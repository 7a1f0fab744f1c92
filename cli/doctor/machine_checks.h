// What this machine gives a job: processors, limits, memory to share, clocks,
// names. Knows nothing of torch.
#pragma once

#include "cli/doctor/report.h"

namespace tessera::cli::doctor {

inline constexpr int kExitMachine = 23;
inline constexpr int kExitLimits = 24;
inline constexpr int kExitSharedMemory = 25;
inline constexpr int kExitClock = 26;

[[nodiscard]] Check check_machine();
[[nodiscard]] Check check_limits();
[[nodiscard]] Check check_shared_memory();
[[nodiscard]] Check check_clock();

}  // namespace tessera::cli::doctor
