// Any bytes as a pickle, and as a value.
#include <cstddef>
#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/checkpoint/value_pickle.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const auto pickle =
        checkpoint::read_pickle(bytes, "input", {.most_nodes = 1'000'000});
    const Value value = checkpoint::value_of(pickle.root(), "input");
    const std::string again = checkpoint::pickle_of(value);
    const auto second = checkpoint::read_pickle(again, "again");
    (void)checkpoint::value_of(second.root(), "again").show();
  } catch (const Error&) {
  }
  return 0;
}
