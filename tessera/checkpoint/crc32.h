// The checksum of zip files (CRC-32, polynomial 0xEDB88320).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::checkpoint {

/// The checksum of what `before` is the checksum of, followed by `bytes`.
[[nodiscard]] uint32_t crc32(std::span<const std::byte> bytes,
                             uint32_t before = 0);

/// The checksum of two parts laid end to end, from theirs.
[[nodiscard]] uint32_t crc32_combine(uint32_t first, uint32_t second,
                                     uint64_t second_bytes);

}  // namespace tessera::checkpoint
