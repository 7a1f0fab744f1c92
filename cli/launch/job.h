// A job: the ranks of one command on this node, from start to the last process,
// and as often as restarts allow.
//
//   return run_job({.num_ranks = 2, .command = {"./train", "--steps", "100"}});
//
// What may happen, and what follows:
//
//   a rank fails         the others get SIGTERM, and SIGKILL after kill_after;
//                        then all start anew while max_restarts allows
//   SIGINT, SIGTERM,     passed on to all; SIGKILL after kill_after
//   SIGHUP, SIGQUIT
//   SIGINT once more     SIGKILL at once
//   SIGUSR1, SIGUSR2     passed on
//   SIGTSTP (Ctrl-Z)     all are stopped, and go on with the launcher
//   launcher is killed   the kernel kills the ranks, the guard their children
//   a rank ends and      what is left of its group gets SIGTERM, then SIGKILL
//   leaves processes
//   another node's rank  as if it had happened here
//   fails, or its
//   launcher is told to
//   end, or is lost
#pragma once

#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/log_options.h"
#include "cli/launch/node_link.h"
#include "cli/launch/rank_environment.h"

namespace tessera::launch {

struct JobOptions {
  int num_ranks = 1;                 // of this node
  std::vector<std::string> command;  // program and arguments
  Environment environment;           // to which the ranks' variables are added
  LogOptions logs = {};
  // From the request to end until SIGKILL.
  std::chrono::milliseconds kill_after = std::chrono::seconds(30);
  int max_restarts = 0;
  std::string role = "default";
  std::optional<std::string> run_id = {};  // unset: one of its own
  std::vector<int> ending_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  DeviceView devices = DeviceView::shared;
  std::string master_address = "127.0.0.1";
  // Of rank 0, which hosts the ranks' store. Unset: one that is free. With
  // several nodes, the port of the nodes' store, which the ranks use too.
  std::optional<int> master_port = {};
  std::optional<NodeLinkOptions> nodes = {};  // set: there are several nodes
};

/// Runs the job and says on stderr what went wrong in it. One at a time in a
/// process: it takes over signals and children.
/// Returns: 0 when all ranks succeeded; else the code of the first that failed
///          (128 + signal when a signal killed it), on whichever node; or 128 +
///          signal when a launcher was sent one and the ranks died of it;
///          kExitNotMet, kExitNodeLost.
/// Errors:  InvalidArgument for num_ranks < 1, an empty command or a negative
///          time; LaunchError when the ranks cannot be started (none is left).
[[nodiscard]] int run_job(const JobOptions& options);

}  // namespace tessera::launch
