#include <torch/csrc/cuda/memory_snapshot.h>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/device/memory_history.h"

namespace tessera {

namespace {

/// Steps of large models have some ten thousand events.
constexpr size_t kMostEvents = 1 << 20;

}  // namespace

void start_memory_history(c10::Device device) {
  require<Unsupported>(device.is_cuda(), [&] {
    return str("a history of memory is of a GPU's allocator; the device is ",
               device.str(), ".");
  });
  // No stacks: they would cost more than the step.
  torch::cuda::_record_memory_history("all", std::nullopt, "python",
                                      kMostEvents, /*clearHistory=*/true);
}

void write_memory_history(const std::string& path) {
  const std::string pickled = torch::cuda::_memory_snapshot_pickled();
  drop_memory_history();
  std::ofstream file(path, std::ios::binary);
  file.write(pickled.data(), static_cast<std::streamsize>(pickled.size()));
  file.close();
  require<InvalidState>(!file.fail(), [&] {
    return str("the history of memory could not be written to '", path, "'.");
  });
}

void drop_memory_history() {
  torch::cuda::_record_memory_history(std::nullopt);
}

}  // namespace tessera
