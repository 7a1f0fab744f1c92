#include "benchmarks/checkpoint_bench/memory.h"

#include <fstream>
#include <string>

namespace checkpoint_bench {
namespace {

int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) {
      return std::stoll(line.substr(name.size())) << 10;
    }
  }
  return 0;
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS:"); }

int64_t take_peak_resident_bytes() {
  const int64_t peak = status_bytes("VmHWM:");
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  return peak;
}

}  // namespace checkpoint_bench
