// What the disk itself does, and files that are read from it and not from
// memory.
#pragma once

#include <cstdint>
#include <string>

namespace checkpoint_bench {

struct RawSpeed {
  double write_s = 0;
  double read_s = 0;
};

/// Writes a file of `num_bytes` from one end to the other, in pieces of 16 MiB,
/// syncs it, drops its pages, reads it back the same way and removes it.
[[nodiscard]] RawSpeed raw_speed(const std::string& path, int64_t num_bytes);

/// Syncs the files of a folder and drops their pages: the next read of them is
/// a read of the disk.
void drop_pages(const std::string& folder);

}  // namespace checkpoint_bench
