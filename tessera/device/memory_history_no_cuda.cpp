#include "tessera/base/error.h"
#include "tessera/device/memory_history.h"

namespace tessera {

void start_memory_history(c10::Device device) {
  throw Unsupported(
      str("a history of memory is of a GPU's allocator; the device is ",
          device.str(), ", and this build has no CUDA."));
}

void write_memory_history(const std::string& /*path*/) {}

void drop_memory_history() {}

}  // namespace tessera
