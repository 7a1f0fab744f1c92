#include "tessera/checkpoint/zip_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "tessera/base/error.h"
#include "tessera/checkpoint/crc32.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kWindow = 8192;
constexpr uint64_t kMostDirectory = 1 << 24;
constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocatorSignature = 0x07064b50;
constexpr uint16_t kZip64Extra = 1;

template <class T>
T little(std::string_view bytes, size_t at) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

struct DirectoryPlace {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  uint64_t count = 0;
};

struct DirectoryEntry {
  ZipRecord record;
  std::string full_name;
  uint64_t header = 0;
};

class DirectoryReader {
 public:
  explicit DirectoryReader(const FileSlice& slice) : slice_(slice) {}

  std::vector<ZipRecord> run() {
    if (slice_.length() < kEndBytes || signature_at(0) != kLocalSignature) {
      refuse("it is no zip file");
    }
    const DirectoryPlace place = find_directory();
    std::vector<DirectoryEntry> entries = read_entries(place);
    std::ranges::sort(entries, {}, &DirectoryEntry::header);
    uint64_t free_from = 0;
    for (DirectoryEntry& entry : entries) {
      locate(entry, free_from, place.begin);
      free_from = entry.record.data_begin + entry.record.num_bytes;
    }
    return without_folder(entries);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw CheckpointError(str(slice_.name(), ": ", why, "."));
  }

  uint32_t signature_at(uint64_t position) const {
    return little<uint32_t>(slice_.read(position, 4), 0);
  }

  // The end record stands last; a comment, or up to a few bytes that do not
  // belong there, may follow it.
  uint64_t find_end() const {
    constexpr uint64_t kMostComment = 65535;
    const uint64_t bytes = std::min(slice_.length(), kEndBytes + kMostComment);
    const uint64_t near = std::min(bytes, kWindow);
    for (const uint64_t count : {near, bytes}) {
      const std::string tail = slice_.read(slice_.length() - count, count);
      for (uint64_t at = count - kEndBytes + 1; at-- > 0;) {
        if (little<uint32_t>(tail, at) == kEndSignature) {
          return slice_.length() - count + at;
        }
      }
    }
    refuse("it has no zip directory: it is cut, or no zip file");
  }

  DirectoryPlace find_directory() const {
    const uint64_t end = find_end();
    const std::string record = slice_.read(end, kEndBytes);
    DirectoryPlace place{.begin = little<uint32_t>(record, 16),
                         .bytes = little<uint32_t>(record, 12),
                         .count = little<uint16_t>(record, 10)};
    uint64_t limit = end;
    const bool locator = end >= kLocatorBytes &&
                         signature_at(end - kLocatorBytes) == kLocatorSignature;
    if (locator) {
      limit =
          little<uint64_t>(slice_.read(end - kLocatorBytes, kLocatorBytes), 8);
      place = read_end64(limit, end - kLocatorBytes);
    }
    if (place.bytes > kMostDirectory || place.begin > limit ||
        place.bytes > limit - place.begin ||
        place.count > place.bytes / kEntryBytes) {
      refuse("its zip directory does not fit the file");
    }
    return place;
  }

  DirectoryPlace read_end64(uint64_t at, uint64_t limit) const {
    if (limit < kEnd64Bytes || at > limit - kEnd64Bytes) {
      refuse("its zip64 end record does not fit the file");
    }
    const std::string record = slice_.read(at, kEnd64Bytes);
    if (little<uint32_t>(record, 0) != kEnd64Signature) {
      refuse("its zip64 end record is damaged");
    }
    return {.begin = little<uint64_t>(record, 48),
            .bytes = little<uint64_t>(record, 40),
            .count = little<uint64_t>(record, 32)};
  }

  std::vector<DirectoryEntry> read_entries(const DirectoryPlace& place) const {
    const std::string bytes = slice_.read(place.begin, place.bytes);
    std::vector<DirectoryEntry> entries;
    size_t at = 0;
    for (uint64_t i = 0; i < place.count; ++i) {
      entries.push_back(read_entry(bytes, at));
    }
    return entries;
  }

  DirectoryEntry read_entry(const std::string& bytes, size_t& at) const {
    if (bytes.size() - at < kEntryBytes ||
        little<uint32_t>(bytes, at) != kEntrySignature) {
      refuse("its zip directory is damaged");
    }
    const std::string_view fixed(bytes.data() + at, kEntryBytes);
    const size_t name_bytes = little<uint16_t>(fixed, 28);
    const size_t extra_bytes = little<uint16_t>(fixed, 30);
    const size_t comment_bytes = little<uint16_t>(fixed, 32);
    if (bytes.size() - at - kEntryBytes <
        name_bytes + extra_bytes + comment_bytes) {
      refuse("its zip directory is cut");
    }
    DirectoryEntry entry;
    entry.full_name = bytes.substr(at + kEntryBytes, name_bytes);
    const uint16_t method = little<uint16_t>(fixed, 10);
    if (method != 0) {
      refuse(str("record '", entry.full_name, "' is compressed (method ",
                 method, "); only stored records are read"));
    }
    entry.record.crc = little<uint32_t>(fixed, 16);
    const std::string_view extra(bytes.data() + at + kEntryBytes + name_bytes,
                                 extra_bytes);
    read_sizes(entry, fixed, extra);
    at += kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    return entry;
  }

  // Numbers of all ones stand in the zip64 field, in this order.
  void read_sizes(DirectoryEntry& entry, std::string_view fixed,
                  std::string_view extra) const {
    uint64_t packed = little<uint32_t>(fixed, 20);
    entry.record.num_bytes = little<uint32_t>(fixed, 24);
    entry.header = little<uint32_t>(fixed, 42);
    std::string_view zip64 = find_extra(extra, kZip64Extra);
    for (uint64_t* number : {&entry.record.num_bytes, &packed, &entry.header}) {
      if (*number != UINT32_MAX) continue;
      if (zip64.size() < 8) refuse("a zip64 field is missing or cut");
      *number = little<uint64_t>(zip64, 0);
      zip64.remove_prefix(8);
    }
    if (packed != entry.record.num_bytes) {
      refuse(str("record '", entry.full_name, "' has two different sizes"));
    }
  }

  std::string_view find_extra(std::string_view extra, uint16_t id) const {
    while (extra.size() >= 4) {
      const size_t bytes = little<uint16_t>(extra, 2);
      if (bytes > extra.size() - 4) refuse("an extra field is cut");
      if (little<uint16_t>(extra, 0) == id) return extra.substr(4, bytes);
      extra.remove_prefix(4 + bytes);
    }
    return {};
  }

  void locate(DirectoryEntry& entry, uint64_t free_from, uint64_t limit) const {
    const auto refuse_record = [&](const char* why) {
      refuse(str("record '", entry.full_name, "' ", why));
    };
    if (entry.header < free_from) refuse_record("overlaps another record");
    if (limit < kLocalBytes || entry.header > limit - kLocalBytes) {
      refuse_record("lies behind the records");
    }
    const std::string fixed = slice_.read(entry.header, kLocalBytes);
    if (little<uint32_t>(fixed, 0) != kLocalSignature) {
      refuse_record("has no header where the directory says");
    }
    const uint64_t name_bytes = little<uint16_t>(fixed, 26);
    const uint64_t more = name_bytes + little<uint16_t>(fixed, 28);
    const uint64_t begin = entry.header + kLocalBytes + more;
    if (begin > limit || entry.record.num_bytes > limit - begin) {
      refuse_record("reaches beyond the records");
    }
    if (slice_.read(entry.header + kLocalBytes, name_bytes) !=
        entry.full_name) {
      refuse_record("has another name in its header");
    }
    entry.record.data_begin = begin;
  }

  std::vector<ZipRecord> without_folder(
      const std::vector<DirectoryEntry>& entries) const {
    std::vector<ZipRecord> records;
    std::set<std::string> names;
    std::string folder;
    for (const DirectoryEntry& entry : entries) {
      const size_t slash = entry.full_name.find('/');
      const std::string top = entry.full_name.substr(0, slash + 1);
      if (slash == std::string::npos || (!folder.empty() && top != folder)) {
        refuse(str("record '", entry.full_name,
                   "' is not in the one folder of the others"));
      }
      folder = top;
      ZipRecord record = entry.record;
      record.name = entry.full_name.substr(slash + 1);
      if (!names.insert(record.name).second) {
        refuse(str("record '", record.name, "' is there twice"));
      }
      records.push_back(std::move(record));
    }
    forget_missing_checksums(records);
    return records;
  }

  // torch.serialization.set_crc32_options(False) leaves them out.
  static void forget_missing_checksums(std::vector<ZipRecord>& records) {
    const bool none = std::ranges::all_of(
        records, [](const ZipRecord& record) { return record.crc == 0U; });
    if (!none) return;
    for (ZipRecord& record : records) record.crc.reset();
  }

  const FileSlice& slice_;
};

}  // namespace

std::vector<ZipRecord> read_zip_directory(const FileSlice& slice) {
  return DirectoryReader(slice).run();
}

const ZipRecord* find_record(const std::vector<ZipRecord>& records,
                             std::string_view name) {
  const auto found = std::ranges::find(records, name, &ZipRecord::name);
  return found == records.end() ? nullptr : &*found;
}

std::string read_record(const FileSlice& slice, const ZipRecord& record,
                        uint64_t most) {
  require<CheckpointError>(record.num_bytes <= most, [&] {
    return str(slice.name(), ": record '", record.name, "' has ",
               record.num_bytes, " bytes; expected at most ", most, ".");
  });
  std::string bytes = slice.read(record.data_begin, record.num_bytes);
  require<CheckpointError>(
      !record.crc || crc32(std::as_bytes(std::span(bytes))) == *record.crc,
      [&] {
        return str(slice.name(), ": record '", record.name,
                   "' does not fit its checksum: the file is damaged.");
      });
  return bytes;
}

}  // namespace tessera::checkpoint
