// Any bytes as the zip of an item: a tensor's, and a value's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/item.h"

using namespace tessera;

namespace {

class MemoryFile final : public checkpoint::ReadableFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  [[nodiscard]] const std::string& path() const override { return path_; }
  [[nodiscard]] uint64_t size() const override { return size_; }
  void read(uint64_t offset, std::span<std::byte> into) const override {
    if (offset > size_ || into.size() > size_ - offset) std::abort();
    if (!into.empty()) std::memcpy(into.data(), data_ + offset, into.size());
  }

 private:
  std::string path_ = "input";
  const uint8_t* data_;
  size_t size_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const MemoryFile file(data, size);
  try {
    const auto tensor = checkpoint::read_tensor_item({file, 0, size});
    const bool inside = tensor.data_begin <= size &&
                        tensor.data_bytes <= size - tensor.data_begin;
    if (!inside) std::abort();
  } catch (const Error&) {
  }
  try {
    (void)checkpoint::read_value_item({file, 0, size},
                                      checkpoint::OnUnknown::keep);
  } catch (const Error&) {
  }
  return 0;
}
