// The options of `tessera run`, as they are written, and the job they mean.
#pragma once

#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/launch/job.h"

namespace tessera::cli {

/// Text as given; empty where nothing was.
struct RunFlags {
  std::string ranks_per_node = "";  // N, auto, cpu, gpu
  std::string num_nodes = "1";      // N or MIN:MAX
  std::optional<int> node_rank = {};
  std::string master_address = "";
  std::optional<int> master_port = {};
  bool standalone = false;
  std::string rendezvous_backend = "static";
  std::string rendezvous_endpoint = "";
  std::string rendezvous_id = "";
  std::string rendezvous_settings = "";  // key=value,...
  std::string local_address = "";
  int max_restarts = 0;
  double monitor_interval_s = 0.1;
  double kill_after_s = 30;
  std::string log_folder = "";
  std::string redirects = "0";
  std::string tee = "0";
  std::string shown_ranks = "";
  bool tag_output = false;
  std::string role = "default";
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  bool own_device = false;
  bool no_python = false;
};

/// Errors: InvalidArgument that names the option, its value and the remedy.
[[nodiscard]] launch::JobOptions job_options(
    const RunFlags& flags, const WordsAfterDashes& command,
    const launch::Environment& environment);

}  // namespace tessera::cli
