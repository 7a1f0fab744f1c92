#include "tessera/base/error.h"
#include "tessera/module/captured_random.h"

namespace tessera {

std::optional<uint64_t> captured_offset(const at::Generator& /*generator*/) {
  return std::nullopt;
}

void set_captured_offset(const at::Generator& /*generator*/,
                         uint64_t /*offset*/) {
  throw InvalidState("set_captured_offset: this build has no CUDA graphs.");
}

void leave_capture(const at::Generator& /*generator*/) {}

}  // namespace tessera
