#include "tessera/checkpoint/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

void raise_errno(const std::string& what, const std::string& path) {
  const int error = errno;
  throw CheckpointError(
      str("cannot ", what, " '", path, "': ", std::strerror(error), "."));
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File File::open(const std::string& path) {
  // Without O_NONBLOCK a pipe is opened once another process writes to it.
  const int descriptor =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) raise_errno("open", path);
  File file(path, descriptor);
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) raise_errno("look at", path);
  require<CheckpointError>(S_ISREG(info.st_mode), [&] {
    return str("cannot read '", path, "': it is not a regular file.");
  });
  return file;
}

File File::create(const std::string& path) {
  const int descriptor =
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) raise_errno("create", path);
  return {path, descriptor};
}

uint64_t File::size() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) raise_errno("look at", path_);
  return static_cast<uint64_t>(info.st_size);
}

namespace {

// Some systems refuse, or cut, calls of 2 GiB and more.
constexpr size_t kMostPerCall = size_t{1} << 30;

// Has the disk begin with large writes now: left to the system, most of them
// would wait for the sync at the end. A hint, where there is such a thing.
void start_write_back([[maybe_unused]] int descriptor,
                      [[maybe_unused]] uint64_t offset,
                      [[maybe_unused]] size_t bytes) {
#ifdef SYNC_FILE_RANGE_WRITE
  constexpr size_t kLarge = size_t{1} << 20;
  if (bytes < kLarge) return;
  ::sync_file_range(descriptor, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
#endif
}

}  // namespace

void File::read(uint64_t offset, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got =
        ::pread(descriptor_, into.data(), std::min(into.size(), kMostPerCall),
                static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) raise_errno("read", path_);
    require<CheckpointError>(got > 0, [&] {
      return str("cannot read '", path_, "': it ends at byte ", offset, ", ",
                 into.size(), " bytes before what was asked for.");
    });
    offset += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
}

void File::write(uint64_t offset, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t done =
        ::pwrite(descriptor_, from.data(), std::min(from.size(), kMostPerCall),
                 static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) raise_errno("write", path_);
    start_write_back(descriptor_, offset, static_cast<size_t>(done));
    offset += static_cast<uint64_t>(done);
    from = from.subspan(static_cast<size_t>(done));
  }
}

void File::sync() {
  if (::fsync(descriptor_) != 0) raise_errno("sync", path_);
}

void File::drop_pages() {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
}

// Only whole pages are dropped: the range is rounded to those around it.
void File::drop_pages(uint64_t offset, uint64_t count) const {
  constexpr uint64_t kPage = 4096;
  const uint64_t begin = offset / kPage * kPage;
  const uint64_t end = (offset + count + kPage - 1) / kPage * kPage;
  ::posix_fadvise(descriptor_, static_cast<off_t>(begin),
                  static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
}

std::string read_file(const std::string& path, uint64_t most) {
  const File file = File::open(path);
  const uint64_t size = file.size();
  require<CheckpointError>(size <= most, [&] {
    return str("cannot read '", path, "': it has ", size,
               " bytes; expected at most ", most, ".");
  });
  std::string bytes(size, '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void sync_folder(const std::string& path) {
  const int descriptor =
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) raise_errno("open folder", path);
  const int failed = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // EINVAL: this file system does not sync folders, it has no need to.
  if (failed != 0 && error != EINVAL) {
    errno = error;
    raise_errno("sync folder", path);
  }
}

void replace_file(const std::string& path, std::string_view bytes) {
  const std::string temporary = str(path, ".tmp-", ::getpid());
  ::unlink(temporary.c_str());
  try {
    File file = File::create(temporary);
    file.write(0, std::as_bytes(std::span(bytes)));
    file.sync();
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
      raise_errno("rename to", path);
    }
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace tessera::checkpoint
