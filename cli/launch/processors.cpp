#include "cli/launch/processors.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace tessera::launch {
namespace {

int processors_of_affinity() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

int processors_of_quota(std::string_view cpu_max) {
  std::istringstream in{std::string(cpu_max)};
  long quota_us = 0;
  long period_us = 0;
  if (!(in >> quota_us >> period_us) || quota_us <= 0 || period_us <= 0) {
    return 0;
  }
  return static_cast<int>((quota_us + period_us - 1) / period_us);
}

int num_cuda_devices(const std::optional<std::string>& visible,
                     const std::string& devices) {
  int count = 0;
  if (visible) {
    std::istringstream entries(*visible);
    for (std::string entry; std::getline(entries, entry, ','); ++count) {
      if (entry.empty() || entry == "-1" || entry.starts_with("No")) break;
    }
    return count;
  }
  std::error_code no_folder;
  for (const auto& file :
       std::filesystem::directory_iterator(devices, no_folder)) {
    const std::string name = file.path().filename();
    const bool numbered =
        name.size() > 6 && name.starts_with("nvidia") &&
        name.find_first_not_of("0123456789", 6) == std::string::npos;
    if (numbered) ++count;
  }
  return count;
}

int num_usable_processors() {
  const int affinity = std::max(1, processors_of_affinity());
  const int quota = processors_of_quota(first_line("/sys/fs/cgroup/cpu.max"));
  return quota > 0 ? std::min(affinity, quota) : affinity;
}

}  // namespace tessera::launch
