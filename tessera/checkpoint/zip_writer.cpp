#include "tessera/checkpoint/zip_writer.h"

#include <span>

#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/zip_layout.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kAlignment = 64;        // of PyTorch, for small records
constexpr uint64_t kDataAlignment = 4096;  // of ours, for tensor data
constexpr std::string_view kFolder = "archive/";
constexpr std::string_view kSerializationId =
    "0000000000000000000000000000000000000000";

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
