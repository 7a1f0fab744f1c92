#include "tessera/checkpoint/zip_writer.h"

#include <bit>
#include <cstring>
#include <span>

#include "tessera/checkpoint/crc32.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kAlignment = 64;        // of PyTorch, for small records
constexpr uint64_t kDataAlignment = 4096;  // of ours, for tensor data
constexpr std::string_view kFolder = "archive/";
constexpr std::string_view kSerializationId =
    "0000000000000000000000000000000000000000";

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

// A local header at `at`, padded so that the data behind it is aligned.
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
  const auto small_count = static_cast<U16>(count);
  return little(U32{0x06064b50}, U64{44}, U16{0x031e}, U16{45}, U32{0}, U32{0},
                count, count, bytes, at) +
         little(U32{0x07064b50}, U32{0}, at + bytes, U32{1}) +
         little(U32{0x06054b50}, U16{0}, U16{0}, small_count, small_count,
                clipped(bytes), clipped(at), U16{0});
}

struct SmallRecord {
  std::string_view name;
  std::string_view bytes;
};

uint32_t crc_of(std::string_view bytes) {
  return crc32(std::as_bytes(std::span(bytes)));
}

// Appends a record whose bytes are at hand; `at` is where `out` begins in the
// item.
uint64_t append_record(std::string& out, uint64_t at,
                       const SmallRecord& record) {
  const uint64_t header = at + out.size();
  const std::string name = std::string(kFolder) + std::string(record.name);
  out += header_of(name, record.bytes.size(), header, kAlignment);
  out += record.bytes;
  out += descriptor_of(record.bytes.size(), crc_of(record.bytes), header);
  return header;
}

constexpr std::string_view kVersion = "3\n";

}  // namespace

ItemLayout::ItemLayout(std::string pickled, uint64_t data_bytes)
    : data_bytes_(data_bytes) {
  for (const SmallRecord& record :
       {SmallRecord{"data.pkl", pickled}, SmallRecord{".format_version", "1"},
        SmallRecord{".storage_alignment", "64"},
        SmallRecord{"byteorder", "little"}}) {
    const uint64_t header = append_record(prefix_, 0, record);
    records_.push_back({std::string(kFolder) + std::string(record.name), header,
                        record.bytes.size(), crc_of(record.bytes)});
  }
  const std::string name = std::string(kFolder) + "data/0";
  records_.push_back({name, prefix_.size(), data_bytes});
  prefix_ += header_of(name, data_bytes, prefix_.size(), kDataAlignment);
  num_bytes_ = prefix_.size() + data_bytes + suffix(0).size();
}

std::string ItemLayout::suffix(uint32_t data_crc) const {
  std::vector<Record> records = records_;
  records.back().crc = data_crc;
  const uint64_t at = prefix_.size() + data_bytes_;
  std::string out = descriptor_of(data_bytes_, data_crc, records.back().header);
  for (const SmallRecord& record :
       {SmallRecord{"version", kVersion},
        SmallRecord{".data/serialization_id", kSerializationId}}) {
    const uint64_t header = append_record(out, at, record);
    records.push_back({std::string(kFolder) + std::string(record.name), header,
                       record.bytes.size(), crc_of(record.bytes)});
  }
  const uint64_t directory = at + out.size();
  std::string entries;
  for (const Record& record : records) {
    entries +=
        entry_of(record.name, record.num_bytes, record.crc, record.header);
  }
  return out + entries + end_of(records.size(), directory, entries.size());
}

std::string value_item(std::string_view pickled) {
  std::string out;
  std::string entries;
  uint64_t count = 0;
  for (const SmallRecord& record :
       {SmallRecord{"data.pkl", pickled}, SmallRecord{".format_version", "1"},
        SmallRecord{".storage_alignment", "64"},
        SmallRecord{"byteorder", "little"}, SmallRecord{"version", kVersion},
        SmallRecord{".data/serialization_id", kSerializationId}}) {
    const uint64_t header = append_record(out, 0, record);
    entries += entry_of(std::string(kFolder) + std::string(record.name),
                        record.bytes.size(), crc_of(record.bytes), header);
    ++count;
  }
  const uint64_t directory = out.size();
  return out + entries + end_of(count, directory, entries.size());
}

}  // namespace tessera::checkpoint
