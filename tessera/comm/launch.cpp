#include "tessera/comm/launch.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

using environment::Launch;

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxPort = 65535;

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

void check_ranks(const Launch& launch) {
  if (launch.rank) {
    require_set(launch.world_size, "WORLD_SIZE", str("RANK is ", *launch.rank));
  }
  if (launch.world_size) {
    require_set(launch.rank, "RANK", str("WORLD_SIZE is ", *launch.world_size));
  }
  if (launch.local_rank) {
    require_set(launch.rank, "RANK", str("LOCAL_RANK is ", *launch.local_rank));
  }
}

void check_numbers(const Launch& launch) {
  require_between(*launch.world_size, "WORLD_SIZE", 1, kMaxRanks,
                  "It counts the processes of the job.");
  require_between(*launch.rank, "RANK", 0, *launch.world_size - 1,
                  str("WORLD_SIZE is ", *launch.world_size,
                      "; every process needs a rank of its own below it."));
  if (launch.local_world_size) {
    require_between(*launch.local_world_size, "LOCAL_WORLD_SIZE", 1,
                    *launch.world_size,
                    "It counts the processes on this machine.");
  }
  if (launch.local_rank) {
    require_between(*launch.local_rank, "LOCAL_RANK", 0,
                    launch.local_world_size.value_or(*launch.world_size) - 1,
                    "It counts the processes on this machine from 0.");
  }
}

// Where the ranks meet.
void check_master(const Launch& launch) {
  const std::string because = str("WORLD_SIZE is ", *launch.world_size);
  require_set(launch.master_addr, "MASTER_ADDR", because);
  require_set(launch.master_port, "MASTER_PORT", because);
  require_between(*launch.master_port, "MASTER_PORT", 1, kMaxPort,
                  "It is a port of the machine MASTER_ADDR.");
}

Job job_of_variables(const Launch& launch, std::string source) {
  check_numbers(launch);
  Job job;
  job.source = std::move(source);
  job.rank = static_cast<int>(*launch.rank);
  job.world_size = static_cast<int>(*launch.world_size);
  if (launch.local_rank) job.local_rank = static_cast<int>(*launch.local_rank);
  job.key_prefix = str("tessera/", launch.run_id.value_or("job"), "/",
                       launch.restart_count.value_or(0));
  if (job.world_size == 1) return job;
  check_master(launch);
  job.master_addr = *launch.master_addr;
  job.master_port = static_cast<int>(*launch.master_port);
  job.agent_hosts_store = launch.agent_hosts_store;
  return job;
}

}  // namespace

Job find_job(const Launch& launch) {
  check_ranks(launch);
  if (launch.rank && launch.run_id) return job_of_variables(launch, "torchrun");
  if (launch.rank) return job_of_variables(launch, "RANK and WORLD_SIZE");
  Job alone;
  alone.source = "one process";
  return alone;
}

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" ||
         address.starts_with("127.");
}

}  // namespace tessera
