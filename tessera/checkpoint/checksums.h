// tessera_checksums.json: what the files of a checkpoint must be. Python
// ignores it; a checkpoint of Python's has none.
//
//   {"version": 1,
//    "files": {".metadata": {"bytes": 1234, "crc32": "cbf43926"}, ...}}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

inline constexpr std::string_view kChecksumsName = "tessera_checksums.json";

struct FileChecksum {
  uint64_t num_bytes = 0;
  uint32_t crc = 0;

  bool operator==(const FileChecksum&) const = default;
};

using Checksums = std::map<std::string, FileChecksum>;  // by file name

[[nodiscard]] std::string write_checksums(const Checksums& checksums);
/// Errors: CheckpointError for text that `write_checksums` would not make.
[[nodiscard]] Checksums parse_checksums(std::string_view text,
                                        const std::string& path);

}  // namespace tessera::checkpoint
