// A file as memory, read-only, for as long as the object lives.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace tessera::train {

class MappedFile {
 public:
  /// Empty when the file cannot be opened or read; errno says why.
  [[nodiscard]] static std::optional<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace tessera::train
