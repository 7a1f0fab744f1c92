#include "cli/launch/rank_environment.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace tessera::launch {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

Variables variables_of_rank(const JobPlace& job, int local_rank) {
  const std::string rank = std::to_string(job.first_rank + local_rank);
  const std::string world_size = std::to_string(job.world_size);
  const bool own = job.devices == DeviceView::own;
  return {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(own ? 0 : local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(job.ranks_per_node)},
      {"GROUP_RANK", std::to_string(job.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(job.num_nodes)},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", world_size},
      {"ROLE_NAME", job.role},
      {"MASTER_ADDR", job.master_address},
      {"MASTER_PORT", std::to_string(job.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(job.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE",
       job.launcher_hosts_store ? "True" : "False"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", job.signals},
  };
}

// The device of a rank among those that the launcher was given.
std::string own_device(const Environment& inherited, int local_rank) {
  const auto visible = find_variable(inherited, "CUDA_VISIBLE_DEVICES");
  if (!visible) return std::to_string(local_rank);
  std::istringstream devices(*visible);
  std::string device;
  for (int i = 0; i <= local_rank; ++i) std::getline(devices, device, ',');
  return devices ? device : "";
}

bool sets(const std::string& entry, std::string_view name) {
  return entry.size() > name.size() && entry[name.size()] == '=' &&
         entry.starts_with(name);
}

void remove_variable(Environment& environment, std::string_view name) {
  std::erase_if(environment,
                [&](const std::string& entry) { return sets(entry, name); });
}

}  // namespace

std::optional<std::string> find_variable(const Environment& environment,
                                         std::string_view name) {
  const auto found =
      std::find_if(environment.rbegin(), environment.rend(),
                   [&](const std::string& entry) { return sets(entry, name); });
  if (found == environment.rend()) return std::nullopt;
  return found->substr(name.size() + 1);
}

Environment rank_environment(const Environment& inherited, const JobPlace& job,
                             int local_rank, const std::string& error_file) {
  Variables variables = variables_of_rank(job, local_rank);
  if (!find_variable(inherited, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    variables.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  }
  if (job.num_threads) {
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(*job.num_threads));
  }
  if (job.devices == DeviceView::own) {
    variables.emplace_back("CUDA_VISIBLE_DEVICES",
                           own_device(inherited, local_rank));
  }
  if (!error_file.empty()) {
    variables.emplace_back("TORCHELASTIC_ERROR_FILE", error_file);
  }
  Environment environment = inherited;
  remove_variable(environment, "TORCHELASTIC_ERROR_FILE");
  for (const auto& [name, value] : variables) {
    remove_variable(environment, name);
    environment.push_back(name + "=" + value);
  }
  return environment;
}

std::optional<int> threads_per_rank(const Environment& inherited, int num_ranks,
                                    int num_processors) {
  if (num_ranks <= 1 || find_variable(inherited, "OMP_NUM_THREADS")) {
    return std::nullopt;
  }
  return std::max(1, num_processors / num_ranks);
}

}  // namespace tessera::launch
