// What the process environment says. The only file that reads it.
//
// Every getter looks anew, so that a launcher or a test may set a variable and
// ask again. An empty variable counts as unset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::environment {

/// Variables of any name, for the few callers that need one of their own.
/// Errors: InvalidArgument when a number is asked for and the text is none.
[[nodiscard]] std::optional<std::string> text(const char* name);
[[nodiscard]] std::optional<int64_t> number(const char* name);

/// One launcher's numbers for this process, each unset where it says nothing.
struct LaunchPlace {
  std::optional<int64_t> rank;
  std::optional<int64_t> size;
  std::optional<int64_t> local_rank;
  std::optional<int64_t> local_size;
};

/// What a Slurm step tells its tasks.
struct SlurmStep {
  LaunchPlace place;  // SLURM_PROCID; SLURM_STEP_NUM_TASKS or SLURM_NTASKS;
                      // SLURM_LOCALID
  std::optional<int64_t> job_id;         // SLURM_JOB_ID
  std::optional<int64_t> step_id;        // SLURM_STEP_ID; only srun sets it
  std::optional<int64_t> num_nodes;      // SLURM_STEP_NUM_NODES or
                                         // SLURM_JOB_NUM_NODES
  std::optional<std::string> nodes;      // SLURM_STEP_NODELIST or
                                         // SLURM_JOB_NODELIST
  std::optional<int64_t> restart_count;  // SLURM_RESTART_COUNT
};

/// What launchers tell a process about its job. Fields that are unset in the
/// environment are empty here; nothing is checked but that numbers are numbers.
struct Launch {
  // torchrun and its like.
  std::optional<int64_t> rank;              // RANK
  std::optional<int64_t> world_size;        // WORLD_SIZE
  std::optional<int64_t> local_rank;        // LOCAL_RANK
  std::optional<int64_t> local_world_size;  // LOCAL_WORLD_SIZE
  std::optional<std::string> master_addr;   // MASTER_ADDR
  std::optional<int64_t> master_port;       // MASTER_PORT
  std::optional<std::string> run_id;        // TORCHELASTIC_RUN_ID
  std::optional<int64_t> restart_count;     // TORCHELASTIC_RESTART_COUNT
  bool agent_hosts_store = false;  // TORCHELASTIC_USE_AGENT_STORE is "True"
  // Other launchers.
  LaunchPlace
      open_mpi;         // OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
  LaunchPlace mpich;    // PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
  LaunchPlace mvapich;  // MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
  LaunchPlace jsrun;    // JSM_NAMESPACE_RANK, _SIZE, _LOCAL_RANK
  SlurmStep slurm;
  std::optional<std::string> mpi_job;            // PMIX_NAMESPACE
  std::optional<int64_t> completion_index;       // JOB_COMPLETION_INDEX
  std::optional<std::string> processes_per_pod;  // PET_NPROC_PER_NODE
};

/// Errors: InvalidArgument naming the variable, its value and the remedy.
[[nodiscard]] Launch launch();

/// TORCHELASTIC_ERROR_FILE: where a rank that fails says why.
[[nodiscard]] std::optional<std::string> error_file();

/// GLOO_SOCKET_IFNAME: the network interface that Gloo binds.
[[nodiscard]] std::optional<std::string> gloo_interface();

/// TESSERA_TRANSPORT: nccl (also when unset) or copy_engines, see
/// InitOptions::transport. Errors: InvalidArgument for anything else.
[[nodiscard]] bool uses_copy_engines();

/// TESSERA_WINDOW_MIB: InitOptions::window_mib.
[[nodiscard]] std::optional<int64_t> window_mib();

/// TESSERA_SHARED_MEMORY: on (also when unset) or off, which sends what CPU
/// ranks of one machine say to each other over TCP too.
/// Errors: InvalidArgument for another value.
[[nodiscard]] bool uses_shared_memory();

/// TESSERA_LOG_LEVEL: debug, info, warning or error.
[[nodiscard]] std::optional<std::string> log_level();

/// Sets TORCH_FR_BUFFER_SIZE=0. LibTorch's flight recorder writes a map of the
/// whole process before it takes its lock, so it must be off, before the first
/// communicator, in a process that holds several ranks.
void disable_flight_recorder();

}  // namespace tessera::environment
