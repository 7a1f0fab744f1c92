// The directory of a zip file that lies somewhere in a larger file, as
// torch.save writes one for each item of a checkpoint.
//
//   | record | record | ... | directory | zip64 end | end |
//   '-- [offset, offset + length) of a file ---------------'
//
// Only stored (not compressed) records; zip64 too. Every number is checked
// against the slice, and records that overlap are refused.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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

struct ZipRecord {
  std::string name;         // without the top folder
  uint64_t data_begin = 0;  // in the slice
  uint64_t num_bytes = 0;
  uint32_t crc = 0;
};

/// Errors: CheckpointError that says what is wrong with which record.
[[nodiscard]] std::vector<ZipRecord> read_zip_directory(const FileSlice& slice);

/// The record of that name, or null.
[[nodiscard]] const ZipRecord* find_record(
    const std::vector<ZipRecord>& records, std::string_view name);

/// All bytes of a record, if they are no more than `most` and fit its checksum.
[[nodiscard]] std::string read_record(const FileSlice& slice,
                                      const ZipRecord& record, uint64_t most);

}  // namespace tessera::checkpoint
