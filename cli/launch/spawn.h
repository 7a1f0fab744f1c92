// Starts one rank as a process.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"

namespace tessera::launch {

/// What a rank is started with. Descriptors stay the caller's.
struct SpawnOptions {
  std::vector<std::string> command;  // program and arguments
  Environment environment;
  int input = 0;
  int output = 1;
  int error = 2;
  int guard = -1;          // Guard::write_end
  sigset_t signal_mask{};  // of the rank; the launcher's own blocks much more
};

/// Starts the command (searched in PATH) as leader of a session and so of a
/// process group of its own, so that a signal to the group also reaches what
/// the rank starts. The kernel kills it when the launcher dies. Returns when
/// the program has been loaded. Errors: LaunchError, kExitCommandNotFound,
/// kExitNotExecutable, or
///         kExitLauncher when no process can be made.
[[nodiscard]] pid_t spawn(const SpawnOptions& options);

/// Errors: LaunchError (kExitTooManyRanks) when the limit on processes (ulimit
/// -u)
///         is below `num_ranks`, before anything is started.
void check_process_limit(int num_ranks);

}  // namespace tessera::launch
