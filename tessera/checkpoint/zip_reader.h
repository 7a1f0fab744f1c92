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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/file_slice.h"

namespace tessera::checkpoint {

struct ZipRecord {
  std::string name;         // without the top folder
  uint64_t data_begin = 0;  // in the slice
  uint64_t num_bytes = 0;
  // Of the data. None in a file that was written without checksums: all are 0
  // there.
  std::optional<uint32_t> crc = {};
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
