// A 64-bit FNV-1a hash that is the same on every machine and in every process.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

class FnvHash {
 public:
  static constexpr uint64_t kStart = 0xcbf29ce484222325ull;

  constexpr explicit FnvHash(uint64_t start = kStart) : value_(start) {}

  /// Texts are ended by a zero byte, so that "ab","c" differs from "a","bc".
  constexpr FnvHash& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<uint8_t>(c));
    return add_byte(0);
  }

  constexpr FnvHash& add(int64_t number) {
    for (int shift = 0; shift < 64; shift += 8) {
      add_byte(static_cast<uint8_t>(static_cast<uint64_t>(number) >> shift));
    }
    return *this;
  }

  [[nodiscard]] constexpr uint64_t value() const { return value_; }

 private:
  constexpr FnvHash& add_byte(uint8_t byte) {
    value_ = (value_ ^ byte) * 0x100000001b3ull;
    return *this;
  }

  uint64_t value_;
};

}  // namespace tessera
