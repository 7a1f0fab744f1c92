#include "tessera/base/environment.h"

#include <charconv>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera::environment {

std::optional<std::string> text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<int64_t> number(const char* name) {
  const std::optional<std::string> value = text(name);
  if (!value) return std::nullopt;
  int64_t result = 0;
  const char* end = value->data() + value->size();
  const auto [parsed, error] = std::from_chars(value->data(), end, result);
  require<InvalidArgument>(error == std::errc() && parsed == end, [&] {
    return str("environment: ", name, " is '", *value,
               "', which is not a whole number; set it to one, or unset it.");
  });
  return result;
}

namespace {

LaunchPlace mpi_place(const std::string& prefix) {
  const auto find = [&](const char* name) {
    return number((prefix + name).c_str());
  };
  return {find("RANK"), find("SIZE"), find("LOCAL_RANK"), find("LOCAL_SIZE")};
}

template <class T>
std::optional<T> either(std::optional<T> first, std::optional<T> second) {
  return first ? first : second;
}

SlurmStep slurm_step() {
  return {
      .place = {number("SLURM_PROCID"),
                either(number("SLURM_STEP_NUM_TASKS"), number("SLURM_NTASKS")),
                number("SLURM_LOCALID"),
                {}},
      .job_id = number("SLURM_JOB_ID"),
      .step_id = number("SLURM_STEP_ID"),
      .num_nodes =
          either(number("SLURM_STEP_NUM_NODES"), number("SLURM_JOB_NUM_NODES")),
      .nodes = either(text("SLURM_STEP_NODELIST"), text("SLURM_JOB_NODELIST")),
      .restart_count = number("SLURM_RESTART_COUNT"),
  };
}

}  // namespace

Launch launch() {
  return {
      .rank = number("RANK"),
      .world_size = number("WORLD_SIZE"),
      .local_rank = number("LOCAL_RANK"),
      .local_world_size = number("LOCAL_WORLD_SIZE"),
      .master_addr = text("MASTER_ADDR"),
      .master_port = number("MASTER_PORT"),
      .run_id = text("TORCHELASTIC_RUN_ID"),
      .restart_count = number("TORCHELASTIC_RESTART_COUNT"),
      .agent_hosts_store = text("TORCHELASTIC_USE_AGENT_STORE") == "True",
      .open_mpi = mpi_place("OMPI_COMM_WORLD_"),
      .mpich = {number("PMI_RANK"), number("PMI_SIZE"),
                number("MPI_LOCALRANKID"), number("MPI_LOCALNRANKS")},
      .mvapich = mpi_place("MV2_COMM_WORLD_"),
      .jsrun = mpi_place("JSM_NAMESPACE_"),
      .slurm = slurm_step(),
      .mpi_job = text("PMIX_NAMESPACE"),
      .completion_index = number("JOB_COMPLETION_INDEX"),
      .processes_per_pod = text("PET_NPROC_PER_NODE"),
  };
}

std::optional<std::string> error_file() {
  return text("TORCHELASTIC_ERROR_FILE");
}

std::optional<std::string> gloo_interface() {
  return text("GLOO_SOCKET_IFNAME");
}

bool uses_copy_engines() {
  const std::string value = text("TESSERA_TRANSPORT").value_or("nccl");
  require<InvalidArgument>(value == "nccl" || value == "copy_engines", [&] {
    return str("environment: TESSERA_TRANSPORT is '", value,
               "'; set it to nccl or copy_engines, or unset it.");
  });
  return value == "copy_engines";
}

std::optional<int64_t> window_mib() { return number("TESSERA_WINDOW_MIB"); }

bool uses_shared_memory() {
  const std::string value = text("TESSERA_SHARED_MEMORY").value_or("on");
  require<InvalidArgument>(value == "on" || value == "off", [&] {
    return str("environment: TESSERA_SHARED_MEMORY is '", value,
               "'; set it to on or off, or unset it.");
  });
  return value == "on";
}

std::optional<std::string> log_level() { return text("TESSERA_LOG_LEVEL"); }

void disable_flight_recorder() { setenv("TORCH_FR_BUFFER_SIZE", "0", 1); }

}  // namespace tessera::environment
