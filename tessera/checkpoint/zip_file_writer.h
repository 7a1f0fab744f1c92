// Writes a zip file record after record, as torch.save lays one out. Records
// are stored, not compressed; zip64 where numbers need it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

class ZipFileWriter {
 public:
  /// `file` must outlive it.
  explicit ZipFileWriter(WritableFile& file) : file_(file) {}

  /// The record's bytes begin at a multiple of 64.
  void add(const std::string& name, std::span<const std::byte> bytes);
  void add(const std::string& name, std::string_view bytes) {
    add(name, std::as_bytes(std::span(bytes)));
  }
  /// Writes the directory. Nothing may be added afterwards.
  void finish();

 private:
  void put(std::span<const std::byte> bytes);
  void put(std::string_view bytes) { put(std::as_bytes(std::span(bytes))); }

  WritableFile& file_;
  uint64_t at_ = 0;
  uint64_t count_ = 0;
  std::string directory_;
};

}  // namespace tessera::checkpoint
