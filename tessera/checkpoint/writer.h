// Writes one rank's part of a checkpoint: items end to end in one file.
//
//   | value | value | ... |gap| tensor | gap | tensor ...
//                             ^ multiples of 4096: so is each tensor's data
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/checkpoint/save_plan.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::checkpoint {

/// Bytes in host memory, as long as `keep` lives.
struct HostBytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> keep = nullptr;
};

/// The bytes of one box, row-major, wherever they are.
struct BoxBytes {
  uint64_t num_bytes = 0;
  // `size` of them from `begin` on. Called by several threads.
  std::function<HostBytes(uint64_t begin, uint64_t size)> part = {};
};

/// Those of a box that is in host memory.
[[nodiscard]] BoxBytes in_host_memory(HostBytes all);

/// Where the writer takes its data from. Called by several threads.
struct WriteSource {
  // The complete item of a value.
  std::function<std::string(const std::string& key)> value;
  std::function<BoxBytes(const std::string& key, const Box& box)> box;
};

struct WrittenFile {
  std::string name = {};  // "" when there was nothing to write
  uint64_t num_bytes = 0;
  uint32_t crc = 0;  // of the whole file
  std::vector<WrittenItem> items = {};
};

/// The name of rank `rank`'s file: "__3_0.distcp".
[[nodiscard]] std::string data_file_name(int rank);

/// Writes `items` of `metadata` into `folder`/`name`, and syncs.
/// Errors: CheckpointError; the file is left half written then.
[[nodiscard]] WrittenFile write_items(
    Storage& storage, const std::string& folder, const std::string& name,
    const std::vector<WriteItem>& items, const Metadata& metadata,
    const WriteSource& source, size_t num_threads);

}  // namespace tessera::checkpoint
