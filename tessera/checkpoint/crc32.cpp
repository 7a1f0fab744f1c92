#include "tessera/checkpoint/crc32.h"

#include <array>
#include <bit>
#include <cstring>

namespace tessera::checkpoint {
namespace {

constexpr uint32_t kPolynomial = 0xedb88320;
constexpr size_t kSlices = 16;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// tables[s][b]: the checksum of byte b followed by s zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
    }
    tables[0][byte] = value;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = before >> 8 ^ tables[0][before & 255];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

// Sixteen bytes at a time: M. E. Kounavis and F. L. Berry, "A Systematic
// Approach to Building High Performance Software-based CRC Generators" (2005).
uint32_t step16(uint32_t crc, const std::byte* data) {
  static_assert(std::endian::native == std::endian::little);
  std::array<uint32_t, 4> words;
  std::memcpy(words.data(), data, sizeof(words));
  words[0] ^= crc;
  uint32_t next = 0;
  for (size_t word = 0; word < 4; ++word) {
    for (size_t byte = 0; byte < 4; ++byte) {
      next ^= kTables[kSlices - 1 - 4 * word - byte]
                     [words[word] >> (8 * byte) & 255];
    }
  }
  return next;
}

// Polynomials over two elements, modulo the CRC's: the product of `a` and `b`.
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  while (bytes.size() >= kSlices) {
    crc = step16(crc, bytes.data());
    bytes = bytes.subspan(kSlices);
  }
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTables[0][(crc ^ static_cast<uint32_t>(byte)) & 255];
  }
  return ~crc;
}

// Appending n zero bytes multiplies by x^(8n): square and multiply.
uint32_t crc32_combine(uint32_t first, uint32_t second, uint64_t second_bytes) {
  uint32_t factor = 1U << 31;       // 1
  uint32_t power = 1U << (31 - 8);  // x^8
  for (uint64_t left = second_bytes; left != 0; left >>= 1) {
    if (left & 1) factor = multiply(power, factor);
    power = multiply(power, power);
  }
  return multiply(factor, first) ^ second;
}

}  // namespace tessera::checkpoint
