#include "tessera/checkpoint/zip_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tessera::checkpoint {
namespace {

template <class... Ts>
std::string little(Ts... values) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes;
  const auto put = [&](auto value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(value));
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  };
  (put(values), ...);
  return bytes;
}

using U16 = uint16_t;
using U32 = uint32_t;
using U64 = uint64_t;

constexpr U32 kTooLarge = UINT32_MAX;

// UTF-8 names; sizes and checksum behind the data, if there is any.
U16 flags_of(uint64_t num_bytes) { return num_bytes > 0 ? 0x0808 : 0x0800; }

U32 clipped(uint64_t number) {
  return number >= kTooLarge ? kTooLarge : static_cast<U32>(number);
}

// The field that holds what does not fit into 32 bits.
std::string zip64_field(uint64_t num_bytes, uint64_t header) {
  std::string numbers;
  if (num_bytes >= kTooLarge) numbers += little(num_bytes, num_bytes);
  if (header >= kTooLarge) numbers += little(header);
  if (numbers.empty()) return {};
  return little(U16{1}, static_cast<U16>(numbers.size())) + numbers;
}

}  // namespace

std::string header_of(const std::string& name, uint64_t num_bytes, uint64_t at,
                      uint64_t alignment) {
  std::string extra = zip64_field(num_bytes, at);
  const uint64_t begin = at + 30 + name.size() + extra.size() + 4;
  const auto padding =
      static_cast<U16>((alignment - begin % alignment) % alignment);
  extra += "FB" + little(padding) + std::string(padding, 'Z');
  return little(U32{0x04034b50}, U16{0}, flags_of(num_bytes), U16{0}, U16{0},
                U16{0}, U32{0}, U32{0}, U32{0}, static_cast<U16>(name.size()),
                static_cast<U16>(extra.size())) +
         name + extra;
}

std::string descriptor_of(uint64_t num_bytes, uint32_t crc, uint64_t header) {
  if (num_bytes == 0) return {};
  const U32 signature = 0x08074b50;
  if (num_bytes >= kTooLarge || header >= kTooLarge) {
    return little(signature, crc, num_bytes, num_bytes);
  }
  const auto size = static_cast<U32>(num_bytes);
  return little(signature, crc, size, size);
}

std::string entry_of(const std::string& name, uint64_t num_bytes, uint32_t crc,
                     uint64_t header) {
  const std::string extra = zip64_field(num_bytes, header);
  const U32 size = clipped(num_bytes);
  return little(U32{0x02014b50}, U16{0}, U16{0}, flags_of(num_bytes), U16{0},
                U16{0}, U16{0}, crc, size, size, static_cast<U16>(name.size()),
                static_cast<U16>(extra.size()), U16{0}, U16{0}, U16{0}, U32{0},
                clipped(header)) +
         name + extra;
}

std::string end_of(uint64_t count, uint64_t at, uint64_t bytes) {
  const auto small_count =
      static_cast<U16>(std::min<uint64_t>(count, UINT16_MAX));
  return little(U32{0x06064b50}, U64{44}, U16{0x031e}, U16{45}, U32{0}, U32{0},
                count, count, bytes, at) +
         little(U32{0x07064b50}, U32{0}, at + bytes, U32{1}) +
         little(U32{0x06054b50}, U16{0}, U16{0}, small_count, small_count,
                clipped(bytes), clipped(at), U16{0});
}

}  // namespace tessera::checkpoint
