// Any text as the header of a safetensors file of any size, and as an index.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors_format.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  uint16_t data_bytes = 0;
  std::memcpy(&data_bytes, data, 2);
  const std::string_view json(reinterpret_cast<const char*>(data) + 2,
                              size - 2);
  try {
    const uint64_t end = 8 + json.size() + data_bytes;
    for (const auto& entry :
         safetensors::parse_header(json, end, "input").tensors) {
      if (entry.begin > entry.end || entry.end > end) std::abort();
    }
  } catch (const Error&) {
  }
  try {
    (void)safetensors::parse_index(json, "input");
  } catch (const Error&) {
  }
  return 0;
}
