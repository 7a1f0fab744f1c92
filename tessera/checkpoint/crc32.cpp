#include "tessera/checkpoint/crc32.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

#if defined(__x86_64__)

// Carry-less products of whole registers: V. Gopal and others, "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction" (2009).
//
// A register of 16 bytes is the polynomial a x^64 + b. That many bits further
// back it weighs a x^(bits + 64) + b x^bits, which modulo the CRC's polynomial
// is two products, and takes the place of what it is added to. The instruction
// multiplies the mirrored numbers, so its product is one power too high.

constexpr uint64_t power_of_x(int exponent) {
  uint32_t power = 1U << 31;  // 1
  for (int i = 0; i < exponent; ++i) power = multiply(power, 1U << 30);
  return uint64_t{power} << 32;
}

struct Distance {
  uint64_t first;   // multiplies a
  uint64_t second;  // multiplies b
};

constexpr Distance distance_of(int bits) {
  return {power_of_x(bits + 64 - 1), power_of_x(bits - 1)};
}

constexpr size_t kLanes = 4;
constexpr Distance kNext = distance_of(128);
constexpr Distance kNextOfLane = distance_of(128 * kLanes);

__m128i load(const std::byte* data) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
}

[[gnu::target("pclmul")]] __m128i fold(__m128i value, __m128i by,
                                       __m128i onto) {
  const __m128i first = _mm_clmulepi64_si128(value, by, 0x00);
  const __m128i second = _mm_clmulepi64_si128(value, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, second), onto);
}

__m128i register_of(const Distance& distance) {
  return _mm_set_epi64x(static_cast<int64_t>(distance.second),
                        static_cast<int64_t>(distance.first));
}

// Takes whole registers off the front of `bytes`, which has at least kLanes.
[[gnu::target("pclmul")]] uint32_t fold_all(uint32_t crc,
                                            std::span<const std::byte>& bytes) {
  const std::byte* data = bytes.data();
  const std::byte* end = data + bytes.size();
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = load(data + 16 * i);
  lanes[0] =
      _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int32_t>(crc)));
  data += 16 * kLanes;
  const __m128i far = register_of(kNextOfLane);
  for (; end - data >= 16 * std::ptrdiff_t{kLanes}; data += 16 * kLanes) {
    for (size_t i = 0; i < kLanes; ++i) {
      lanes[i] = fold(lanes[i], far, load(data + 16 * i));
    }
  }
  const __m128i near = register_of(kNext);
  __m128i value = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) value = fold(value, near, lanes[i]);
  for (; end - data >= 16; data += 16) value = fold(value, near, load(data));
  bytes = bytes.last(static_cast<size_t>(end - data));
  std::array<std::byte, 16> left;
  std::memcpy(left.data(), &value, sizeof(value));
  return step16(0, left.data());
}

bool has_carryless_product() {
  static const bool has = __builtin_cpu_supports("pclmul");
  return has;
}

#endif

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
#if defined(__x86_64__)
  if (bytes.size() >= 16 * kLanes && has_carryless_product()) {
    crc = fold_all(crc, bytes);
  }
#endif
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
