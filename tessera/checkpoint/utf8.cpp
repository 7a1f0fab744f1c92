#include "tessera/checkpoint/utf8.h"

#include <cstddef>
#include <cstdint>

namespace tessera::checkpoint {
namespace {

// The bytes of one character by its first: 0 for none, and the smallest code
// point that needs so many.
struct Utf8Length {
  size_t bytes;
  uint32_t least;
};

Utf8Length utf8_length(uint8_t first) {
  if (first < 0x80) return {1, 0};
  if (first >> 5 == 0x6) return {2, 0x80};
  if (first >> 4 == 0xe) return {3, 0x800};
  if (first >> 3 == 0x1e) return {4, 0x10000};
  return {0, 0};
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<uint8_t>(text[at]);
    const auto [bytes, least] = utf8_length(first);
    if (bytes == 0 || bytes > text.size() - at) return false;
    uint32_t code = bytes == 1 ? first : first & (0x7fU >> bytes);
    for (size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<uint8_t>(text[at + i]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3f);
    }
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (code < least || code > 0x10ffff || surrogate) return false;
    at += bytes;
  }
  return true;
}

}  // namespace tessera::checkpoint
