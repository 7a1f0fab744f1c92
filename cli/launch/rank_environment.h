// The environment of one rank: torchrun's variables, so that whatever runs
// under torchrun also runs under `tessera run`.
//
// Pure: text in, text out. For rank 1 of a job of 2 on one node:
//
//   RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0
//   GROUP_WORLD_SIZE=1 ROLE_RANK=1 ROLE_WORLD_SIZE=2 ROLE_NAME=default
//   MASTER_ADDR=127.0.0.1 MASTER_PORT=<free port> TORCHELASTIC_RESTART_COUNT=0
//   ...
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::launch {

/// Entries "NAME=value", as in `environ`.
using Environment = std::vector<std::string>;

/// `shared`: every rank sees all devices, and its own is LOCAL_RANK.
/// `own`: LOCAL_RANK is 0, and CUDA_VISIBLE_DEVICES names one device.
enum class DeviceView { shared, own };

/// What all ranks of a node have in common.
struct JobPlace {
  int ranks_per_node = 1;  // of this node
  int num_nodes = 1;
  int node_rank = 0;
  int first_rank = 0;  // of this node
  int world_size = 1;
  std::string role = "default";
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  bool launcher_hosts_store = false;  // else rank 0 does
  std::string run_id = "none";
  int restart_count = 0;
  int max_restarts = 0;
  std::string signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  DeviceView devices = DeviceView::shared;
  // OMP_NUM_THREADS of each rank. Unset: left as inherited.
  std::optional<int> num_threads = {};
};

/// `inherited` with the variables of `local_rank` put in place of older values.
/// An inherited TORCHELASTIC_ERROR_FILE, an outer launcher's, is taken out:
/// all ranks would write over each other in it. `error_file` is put in its
/// place unless it is empty.
[[nodiscard]] Environment rank_environment(const Environment& inherited,
                                           const JobPlace& job, int local_rank,
                                           const std::string& error_file = "");

/// The value of `name`, or none. The last entry wins.
[[nodiscard]] std::optional<std::string> find_variable(
    const Environment& environment, std::string_view name);

/// How many threads each rank should compute with: `num_processors` shared out
/// evenly, at least 1. None, to leave the choice to the program, when there is
/// one rank or the user has set OMP_NUM_THREADS.
///
/// torchrun gives 1, which leaves most of a CPU machine idle; a default of all
/// processors for every rank makes them fight.
[[nodiscard]] std::optional<int> threads_per_rank(const Environment& inherited,
                                                  int num_ranks,
                                                  int num_processors);

}  // namespace tessera::launch
