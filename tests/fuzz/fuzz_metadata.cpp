// Any bytes as `.metadata`; what is read is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/checkpoint/metadata.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto metadata = checkpoint::parse_metadata(bytes, "input");
    const std::string again =
        checkpoint::write_metadata(metadata, "id", "save");
    const auto second = checkpoint::parse_metadata(again, "again");
    if (second.tensors.size() != metadata.tensors.size()) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
