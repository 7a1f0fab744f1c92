// A job: N ranks of one command, from start to the last process.
//
//   return run_job({.num_ranks = 2, .command = {"./train", "--steps", "100"}});
//
// What may happen, and what follows:
//
//   a rank fails         the others get SIGTERM, and SIGKILL after kill_after
//   SIGINT, SIGTERM,     passed on to all; SIGKILL after kill_after
//   SIGHUP, SIGQUIT
//   SIGINT once more     SIGKILL at once
//   SIGUSR1, SIGUSR2     passed on
//   SIGTSTP (Ctrl-Z)     all are stopped, and go on with the launcher
//   launcher is killed   the kernel kills the ranks, the guard their children
//   a rank ends and      what is left of its group gets SIGTERM, then SIGKILL
//   leaves processes
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/launch/rank_environment.h"

namespace tessera::launch {

/// `plain`: ranks write where the launcher does. `tagged`: the launcher passes
/// on whole lines with "[rank N] " in front.
enum class OutputMode { plain, tagged };

struct JobOptions {
  int num_ranks = 1;
  std::vector<std::string> command;  // program and arguments
  Environment environment;           // to which the ranks' variables are added
  OutputMode output = OutputMode::plain;
  // From the request to end until SIGKILL.
  std::chrono::milliseconds kill_after = std::chrono::seconds(30);
};

/// Runs the job and says on stderr what went wrong in it. One at a time in a
/// process: it takes over signals and children.
/// Returns: 0 when all ranks succeeded; else the code of the first that failed
///          (128 + signal when a signal killed it), or 128 + signal when the
///          launcher was sent one and the ranks died of it.
/// Errors:  InvalidArgument for num_ranks < 1, an empty command or a negative
///          time; LaunchError when the ranks cannot be started (none is left).
[[nodiscard]] int run_job(const JobOptions& options);

}  // namespace tessera::launch
