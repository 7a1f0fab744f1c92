// Which job this process belongs to, decided from what launchers set. Pure.
//
//   found in the environment                 this process is a rank of
//   TORCHELASTIC_RUN_ID and RANK             torchrun, tessera run
//   RANK, WORLD_SIZE and LOCAL_RANK          a launcher alike: Ray, DeepSpeed
//   RANK and WORLD_SIZE                      Kubernetes pods, or set by hand
//   OMPI_COMM_WORLD_RANK and _SIZE           mpirun of Open MPI
//   PMI_RANK and PMI_SIZE                    mpiexec of MPICH or Intel MPI
//   MV2_COMM_WORLD_RANK and _SIZE            mpirun of MVAPICH2
//   JSM_NAMESPACE_RANK and _SIZE             jsrun of LSF
//   SLURM_PROCID, SLURM_STEP_ID              srun of Slurm
//   JOB_COMPLETION_INDEX and WORLD_SIZE      an indexed Job of Kubernetes
//   none of these                            nothing; it is alone
//
// The first row that applies counts; the upper launchers are usually started
// by the lower ones. Half a set is an error, and so are two rows that speak of
// different ranks where neither is known to have started the other: to run
// alone by mistake, W times over, is the worst of outcomes.
#pragma once

#include <optional>
#include <string>

#include "tessera/base/environment.h"

namespace tessera {

struct Job {
  // "torchrun", "RANK and WORLD_SIZE", "Open MPI", "MPICH", "MVAPICH2",
  // "jsrun", "Slurm", "Kubernetes indexed Job", or "one process".
  std::string source;
  std::string because;  // the variables that decided it, with their values
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

/// The first host of a list as Slurm writes it: node01 of "node[01-03,7],x".
[[nodiscard]] std::string first_host(const std::string& node_list);

}  // namespace tessera
