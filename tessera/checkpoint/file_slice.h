// A part of a file, such as an item of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// A part of a file, with a small cache: items are read from both ends.
class FileSlice {
 public:
  /// Errors: CheckpointError when the file ends before the slice does.
  FileSlice(const ReadableFile& file, uint64_t offset, uint64_t length);

  [[nodiscard]] uint64_t offset() const { return offset_; }
  [[nodiscard]] uint64_t length() const { return length_; }
  /// Positions count from the slice's begin.
  /// Errors: CheckpointError beyond the slice.
  [[nodiscard]] std::string read(uint64_t position, uint64_t count) const;
  void read(uint64_t position, std::span<std::byte> into) const;
  /// The ends of a large slice were read, and its middle will be, from end to
  /// end: takes their pages out of memory, which would be islands in the way of
  /// the system's reading ahead. Loads from a disk take a quarter less time so.
  void forget_ends() const;
  /// "item at byte 17 of 'file'", for messages.
  [[nodiscard]] std::string name() const;

 private:
  struct Window {
    uint64_t begin = 0;
    std::string bytes;
  };

  const ReadableFile& file_;
  uint64_t offset_;
  uint64_t length_;
  mutable Window head_;
  mutable Window tail_;
};

}  // namespace tessera::checkpoint
