#include "tessera/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

namespace tessera {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
using Table = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: what byte b does to the checksum k bytes later, so that eight
// bytes are eight look-ups that do not wait for each other.
constexpr Table make_tables() {
  Table tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) {
      sum = (sum >> 1) ^ ((sum & 1) ? kPolynomial : 0);
    }
    tables[0][byte] = sum;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t sum = tables[k - 1][byte];
      tables[k][byte] = (sum >> 8) ^ tables[0][sum & 255];
    }
  }
  return tables;
}

constexpr Table kTables = make_tables();
static_assert(std::endian::native == std::endian::little);

uint32_t add_eight(uint32_t sum, const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, 8);
  word ^= sum;
  uint32_t next = 0;
  for (size_t k = 0; k < 8; ++k) {
    next ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  return next;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    sum = add_eight(sum, bytes.data() + at);
  }
  for (; at < bytes.size(); ++at) {
    const auto byte = static_cast<uint32_t>(bytes[at]);
    sum = (sum >> 8) ^ kTables[0][(sum ^ byte) & 255];
  }
  return ~sum;
}

}  // namespace tessera
