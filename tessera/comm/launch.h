// Which job this process belongs to, decided from what launchers set. Pure.
//
//   found in the environment              this process is
//   TORCHELASTIC_RUN_ID, RANK, ...        a worker of torchrun
//   RANK and WORLD_SIZE (LOCAL_RANK)      a worker of a launcher alike
//   none of these                         alone
//
// The first row that applies counts. Half a set is an error: to run alone by
// mistake, W times over, is the worst of outcomes.
#pragma once

#include <optional>
#include <string>

#include "tessera/base/environment.h"

namespace tessera {

struct Job {
  std::string source;  // "torchrun", "RANK and WORLD_SIZE", "one process"
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;  // unset: the launcher did not say
  std::string master_addr;        // "" in a world of one
  int master_port = 0;
  bool agent_hosts_store = false;  // else rank 0 does
  std::string key_prefix;          // differs from one restart to the next
};

/// Errors: InvalidArgument that names the variable, its value and the remedy.
[[nodiscard]] Job find_job(const environment::Launch& launch);

/// True for a name or address that means this machine alone.
[[nodiscard]] bool is_loopback(const std::string& address);

}  // namespace tessera
