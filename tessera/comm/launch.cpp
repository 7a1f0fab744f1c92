#include "tessera/comm/launch.h"

#include <array>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/fnv_hash.h"

namespace tessera {
namespace {

using environment::Launch;
using environment::LaunchPlace;

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxPort = 65535;
constexpr int64_t kUsualPort = 29500;

// A launcher's numbers, and how its variables are called.
struct Found {
  const char* source;
  LaunchPlace place;
  const char* rank_name;
  const char* size_name;
  const char* local_rank_name;
  const char* local_size_name;

  [[nodiscard]] bool any() const { return place.rank || place.size; }
  [[nodiscard]] bool same_rank_as(const Found& other) const {
    return place.rank == other.place.rank && place.size == other.place.size;
  }
  [[nodiscard]] std::string numbers() const {
    std::string text;
    const auto add = [&](const char* name, std::optional<int64_t> value) {
      if (value) text += str(text.empty() ? "" : ", ", name, " ", *value);
    };
    add(rank_name, place.rank);
    add(size_name, place.size);
    add(local_rank_name, place.local_rank);
    return text;
  }
};

Found plain(const Launch& launch) {
  return {"RANK and WORLD_SIZE",
          {launch.rank, launch.world_size, launch.local_rank,
           launch.local_world_size},
          "RANK",
          "WORLD_SIZE",
          "LOCAL_RANK",
          "LOCAL_WORLD_SIZE"};
}

// In the order in which they count.
std::array<Found, 4> mpi_launchers(const Launch& launch) {
  return {
      Found{"Open MPI", launch.open_mpi, "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE"},
      Found{"MPICH", launch.mpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID",
            "MPI_LOCALNRANKS"},
      Found{"MVAPICH2", launch.mvapich, "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
            "MV2_COMM_WORLD_LOCAL_SIZE"},
      Found{"jsrun", launch.jsrun, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
            "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"}};
}

Found slurm(const Launch& launch) {
  return {"Slurm",        launch.slurm.place, "SLURM_PROCID",
          "SLURM_NTASKS", "SLURM_LOCALID",    "SLURM_NTASKS_PER_NODE"};
}

[[noreturn]] void refuse_both(const Found& one, const Found& other) {
  throw InvalidArgument(str(
      "init_distributed: the environment speaks of two jobs: ", one.numbers(),
      " (", one.source, "), but ", other.numbers(), " (", other.source,
      "); unset the variables of the one that did not start ",
      "this process."));
}

// The MPI launcher, if any; two with different ranks are refused.
std::optional<Found> find_mpi(const Launch& launch) {
  std::optional<Found> first;
  for (const Found& found : mpi_launchers(launch)) {
    if (!found.any()) continue;
    if (first && !first->same_rank_as(found)) refuse_both(*first, found);
    if (!first) first = found;
  }
  return first;
}

template <class T>
void require_set(const std::optional<T>& value, const char* name,
                 const std::string& because) {
  require<InvalidArgument>(value.has_value(), [&] {
    return str("init_distributed: ", name, " is unset, though ", because,
               "; set it, or start the ranks by torchrun or tessera run.");
  });
}

void require_between(int64_t value, const char* name, int64_t low, int64_t high,
                     const std::string& remedy) {
  require<InvalidArgument>(value >= low && value <= high, [&] {
    return str("init_distributed: ", name, " is ", value, "; expected ", low,
               " to ", high, ". ", remedy);
  });
}

void check_complete(const Found& found) {
  const LaunchPlace& place = found.place;
  if (place.rank) {
    require_set(place.size, found.size_name,
                str(found.rank_name, " is ", *place.rank));
  }
  if (place.size) {
    require_set(place.rank, found.rank_name,
                str(found.size_name, " is ", *place.size));
  }
  if (place.local_rank) {
    require_set(place.rank, found.rank_name,
                str(found.local_rank_name, " is ", *place.local_rank));
  }
}

void check_numbers(const Found& found) {
  const LaunchPlace& place = found.place;
  require_between(*place.size, found.size_name, 1, kMaxRanks,
                  "It counts the processes of the job.");
  require_between(*place.rank, found.rank_name, 0, *place.size - 1,
                  str(found.size_name, " is ", *place.size,
                      "; every process needs a rank of its own below it."));
  if (place.local_size) {
    require_between(*place.local_size, found.local_size_name, 1, *place.size,
                    "It counts the processes on this machine.");
  }
  if (place.local_rank) {
    require_between(*place.local_rank, found.local_rank_name, 0,
                    place.local_size.value_or(*place.size) - 1,
                    "It counts the processes on this machine from 0.");
  }
}

// Where the ranks meet when nobody says so.
struct Meeting {
  std::optional<std::string> addr;
  std::optional<int64_t> port;
  std::string remedy;  // when there is no address
};

int64_t port_of(const std::string& job_name) {
  FnvHash hash;
  hash.add(job_name);
  constexpr uint64_t kFirst = 10'000;
  constexpr uint64_t kNumPorts = 20'000;  // below what systems hand out
  return static_cast<int64_t>(kFirst + hash.value() % kNumPorts);
}

Meeting meeting_of_mpi(const Launch& launch, const Found& mpi) {
  Meeting meeting;
  meeting.port = launch.mpi_job ? port_of(*launch.mpi_job) : kUsualPort;
  if (mpi.place.local_size == mpi.place.size) meeting.addr = "127.0.0.1";
  meeting.remedy =
      str("the ", *mpi.place.size, " ranks of ", mpi.source,
          " are on several machines; set it, for all of them, to the host of "
          "rank 0 (mpirun -x MASTER_ADDR=host, mpiexec -genv MASTER_ADDR "
          "host).");
  return meeting;
}

Meeting meeting_of_slurm(const Launch& launch) {
  const environment::SlurmStep& step = launch.slurm;
  Meeting meeting;
  meeting.port =
      port_of(str(step.job_id.value_or(0), ".", step.step_id.value_or(0)));
  if (step.num_nodes == 1) {
    meeting.addr = "127.0.0.1";
  } else if (step.nodes) {
    meeting.addr = first_host(*step.nodes);
  }
  meeting.remedy = "SLURM_STEP_NODELIST is unset too; set one of them.";
  return meeting;
}

// MASTER_ADDR and MASTER_PORT go before what the launcher suggests.
void find_master(Job& job, const Launch& launch, const Meeting& meeting) {
  const auto addr = launch.master_addr ? launch.master_addr : meeting.addr;
  const auto port = launch.master_port ? launch.master_port : meeting.port;
  require<InvalidArgument>(addr || meeting.remedy.empty(), [&] {
    return str("init_distributed: MASTER_ADDR is unset, and ", meeting.remedy);
  });
  const std::string because = str("WORLD_SIZE is ", job.world_size);
  require_set(addr, "MASTER_ADDR", because);
  require_set(port, "MASTER_PORT", because);
  require_between(*port, "MASTER_PORT", 1, kMaxPort,
                  "It is a port of the machine MASTER_ADDR.");
  job.master_addr = *addr;
  job.master_port = static_cast<int>(*port);
}

Job job_of(const Launch& launch, const Found& found, const Meeting& meeting) {
  check_complete(found);
  check_numbers(found);
  Job job;
  job.source = found.source;
  job.because = found.numbers();
  job.rank = static_cast<int>(*found.place.rank);
  job.world_size = static_cast<int>(*found.place.size);
  if (found.place.local_rank) {
    job.local_rank = static_cast<int>(*found.place.local_rank);
  }
  job.key_prefix = str(
      "tessera/", launch.run_id.value_or(launch.mpi_job.value_or("job")), "/",
      launch.restart_count.value_or(launch.slurm.restart_count.value_or(0)));
  if (job.world_size == 1) return job;
  find_master(job, launch, meeting);
  job.agent_hosts_store = launch.agent_hosts_store && launch.rank;
  return job;
}

// In pods of a training operator RANK and WORLD_SIZE may count pods.
void refuse_ranks_of_pods(const Launch& launch) {
  const auto& count = launch.processes_per_pod;
  require<InvalidArgument>(!count || *count == "1", [&] {
    return str(
        "init_distributed: RANK and WORLD_SIZE count pods here, not "
        "processes: PET_NPROC_PER_NODE is ",
        *count,
        " and LOCAL_RANK is unset; start the processes of a pod "
        "by `tessera run -- program`, which reads the PET_ variables.");
  });
}

// RANK or WORLD_SIZE, without LOCAL_RANK: by hand or by Kubernetes, perhaps
// under mpirun or srun, which then know the local rank.
Job job_of_plain(const Launch& launch, const std::optional<Found>& mpi) {
  Found found = plain(launch);
  if (mpi && found.place.rank && !found.same_rank_as(*mpi)) {
    refuse_both(found, *mpi);
  }
  refuse_ranks_of_pods(launch);
  const Found task = slurm(launch);
  if (mpi) {
    found.place.local_rank = mpi->place.local_rank;
  } else if (task.same_rank_as(found)) {
    found.place.local_rank = task.place.local_rank;
  }
  return job_of(launch, found, {});
}

bool is_slurm_task(const Launch& launch) {
  const Found task = slurm(launch);
  if (!task.place.rank) return false;
  require<InvalidArgument>(
      launch.slurm.step_id || task.place.size.value_or(1) == 1, [&] {
        return str("init_distributed: SLURM_NTASKS is ", *task.place.size,
                   ", but srun did not start this process (SLURM_STEP_ID is "
                   "unset); start it by srun, or unset SLURM_PROCID to run "
                   "it alone.");
      });
  return launch.slurm.step_id.has_value();
}

// WORLD_SIZE alone is often exported by the script around srun or mpirun.
void check_world_size(const Found& plain, const Found& launcher) {
  const auto& size = plain.place.size;
  if (size && size != launcher.place.size) refuse_both(plain, launcher);
}

Job job_of_pod(const Launch& launch) {
  require<InvalidArgument>(launch.world_size.has_value(), [&] {
    return str("init_distributed: JOB_COMPLETION_INDEX is ",
               *launch.completion_index,
               ", so this pod is one of an indexed Job, but WORLD_SIZE is "
               "unset; set WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the "
               "Job, or RANK=0 and WORLD_SIZE=1 if each pod is alone.");
  });
  Found pod = plain(launch);
  pod.source = "Kubernetes indexed Job";
  pod.place.rank = launch.completion_index;
  pod.rank_name = "JOB_COMPLETION_INDEX";
  refuse_ranks_of_pods(launch);
  return job_of(launch, pod, {});
}

}  // namespace

Job find_job(const Launch& launch) {
  Found found = plain(launch);
  if (launch.rank && launch.run_id) {
    found.source = "torchrun";
    return job_of(launch, found, {});
  }
  if (launch.local_rank) return job_of(launch, found, {});
  const std::optional<Found> mpi = find_mpi(launch);
  if (launch.rank) return job_of_plain(launch, mpi);
  if (mpi) {
    check_world_size(found, *mpi);
    return job_of(launch, *mpi, meeting_of_mpi(launch, *mpi));
  }
  if (is_slurm_task(launch)) {
    check_world_size(found, slurm(launch));
    return job_of(launch, slurm(launch), meeting_of_slurm(launch));
  }
  if (launch.completion_index) return job_of_pod(launch);
  if (launch.world_size) return job_of_plain(launch, {});
  Job alone;
  alone.source = "one process";
  alone.because = "no launcher's variables are set";
  return alone;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

// Each bracket stands for several numbers; the first of each is the host's.
std::string first_host(const std::string& node_list) {
  std::string host;
  size_t at = 0;
  while (at < node_list.size() && node_list[at] != ',') {
    if (node_list[at] != '[') {
      host += node_list[at++];
      continue;
    }
    const size_t number_end = node_list.find_first_of(",-]", at);
    host += node_list.substr(at + 1, number_end - at - 1);
    const size_t end = node_list.find(']', at);
    at = end == std::string::npos ? node_list.size() : end + 1;
  }
  return host;
}

}  // namespace tessera
