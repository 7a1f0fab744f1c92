#include "tessera/train/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tessera::train {
namespace {

void* map_whole(int file, size_t size) {
  return ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
}

}  // namespace

std::optional<MappedFile> MappedFile::open(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat status {};
  std::optional<MappedFile> mapped;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode)) {
    const auto size = static_cast<size_t>(status.st_size);
    void* start = size == 0 ? nullptr : map_whole(file, size);
    if (start != MAP_FAILED) {
      mapped = MappedFile({static_cast<const std::byte*>(start), size});
    }
  } else {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  const int reason = errno;
  ::close(file);
  errno = reason;
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.data() != nullptr) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace tessera::train
