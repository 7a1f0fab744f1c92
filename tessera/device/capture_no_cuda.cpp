#include "tessera/device/capture.h"

namespace tessera {

std::optional<uint64_t> capture_id(c10::Device /*device*/) {
  return std::nullopt;
}

}  // namespace tessera
