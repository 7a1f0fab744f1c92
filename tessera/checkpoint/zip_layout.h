// The fixed parts of a zip file, as PyTorch lays them out.
//
//   | header, name, padding | data | descriptor | ... | entries | end |
#pragma once

#include <cstdint>
#include <string>

namespace tessera::checkpoint {

/// A local header at byte `at`, padded so that the data behind it begins at a
/// multiple of `alignment`.
[[nodiscard]] std::string header_of(const std::string& name, uint64_t num_bytes,
                                    uint64_t at, uint64_t alignment);

/// What stands behind the data: its checksum and size. Nothing for no data.
[[nodiscard]] std::string descriptor_of(uint64_t num_bytes, uint32_t crc,
                                        uint64_t header);

/// The record's entry in the directory.
[[nodiscard]] std::string entry_of(const std::string& name, uint64_t num_bytes,
                                   uint32_t crc, uint64_t header);

/// All behind a directory of `count` entries and `bytes` bytes at byte `at`.
[[nodiscard]] std::string end_of(uint64_t count, uint64_t at, uint64_t bytes);

}  // namespace tessera::checkpoint
