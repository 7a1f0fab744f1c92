// 64-bit FNV-1a hashes that are the same on every machine of one byte order and
// in every process: of what a call is, and of large values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tessera {

class FnvHash {
 public:
  static constexpr uint64_t kStart = 0xcbf29ce484222325ull;

  constexpr explicit FnvHash(uint64_t start = kStart) : value_(start) {}

  /// Texts are ended by a zero byte, so that "ab","c" differs from "a","bc".
  constexpr FnvHash& add(std::string_view text) {
    return add_characters(text).add_word(0);
  }

  /// The text alone, without an end.
  constexpr FnvHash& add_characters(std::string_view text) {
    for (const char c : text) add_word(static_cast<uint8_t>(c));
    return *this;
  }

  constexpr FnvHash& add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_word(static_cast<uint8_t>(static_cast<uint64_t>(number) >> shift));
    }
    return *this;
  }

  /// Memory, fast: in words of 8 bytes, their high bits folded back.
  FnvHash& add_memory(const void* bytes, size_t num_bytes) {
    const auto* data = static_cast<const char*>(bytes);
    for (; num_bytes >= 8; data += 8, num_bytes -= 8) {
      uint64_t word;
      std::copy_n(data, 8, reinterpret_cast<char*>(&word));
      add_word(word);
      value_ ^= value_ >> 29;
    }
    return add_characters({data, num_bytes});
  }

  [[nodiscard]] constexpr uint64_t value() const { return value_; }

 private:
  constexpr FnvHash& add_word(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3ull;
    return *this;
  }

  uint64_t value_;
};

/// Of large values, to compare them over ranks by a few bytes.
[[nodiscard]] inline uint64_t hash_bytes(const void* bytes, size_t num_bytes) {
  return FnvHash().add_memory(bytes, num_bytes).value();
}

}  // namespace tessera
