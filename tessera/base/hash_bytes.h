// A fast 64-bit hash of memory, the same on every machine of one byte order: to
// compare large values over ranks by a few bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tessera {

/// FNV-1a over words of 8 bytes, with the high bits folded back. `start`: the
/// hash of what came before.
[[nodiscard]] inline uint64_t hash_bytes(
    const void* bytes, size_t num_bytes,
    uint64_t start = 0xcbf29ce484222325ull) {
  constexpr uint64_t kPrime = 0x100000001b3ull;
  const auto* data = static_cast<const char*>(bytes);
  uint64_t hash = start;
  for (; num_bytes >= 8; data += 8, num_bytes -= 8) {
    uint64_t word;
    std::copy_n(data, 8, reinterpret_cast<char*>(&word));
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (size_t i = 0; i < num_bytes; ++i) {
    hash = (hash ^ static_cast<unsigned char>(data[i])) * kPrime;
  }
  return hash;
}

}  // namespace tessera
