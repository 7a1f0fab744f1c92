#include "tessera/checkpoint/zip_file_writer.h"

#include "tessera/checkpoint/crc32.h"
#include "tessera/checkpoint/zip_layout.h"

namespace tessera::checkpoint {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr const char* kFolder = "archive/";

}  // namespace

void ZipFileWriter::add(const std::string& name,
                        std::span<const std::byte> bytes) {
  const std::string full_name = kFolder + name;
  const uint64_t header = at_;
  const uint32_t crc = crc32(bytes);
  put(header_of(full_name, bytes.size(), header, kAlignment));
  put(bytes);
  put(descriptor_of(bytes.size(), crc, header));
  directory_ += entry_of(full_name, bytes.size(), crc, header);
  ++count_;
}

void ZipFileWriter::finish() {
  const uint64_t begin = at_;
  put(directory_);
  put(end_of(count_, begin, directory_.size()));
}

void ZipFileWriter::put(std::span<const std::byte> bytes) {
  file_.write(at_, bytes);
  at_ += bytes.size();
}

}  // namespace tessera::checkpoint
