#include "tessera/comm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <system_error>
#include <utility>

namespace tessera {
namespace {

// Stands before the data: who opens the wrong file of the wrong process by
// mistake finds another number.
constexpr size_t kHeader = 64;

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Processes see each other's /proc only on one machine, in one PID namespace.
std::string neighbourhood() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &space) != 0) return "";
  std::ostringstream text;
  text << boot << '/' << space.st_dev << '/' << space.st_ino << '/'
       << ::geteuid();
  return text.str();
}

uint64_t random_number() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : bytes_(bytes), maker_(::getpid()) {
  file_ = ::memfd_create("tessera", MFD_CLOEXEC);
  if (file_ < 0) fail("memfd_create");
  if (::ftruncate(file_, static_cast<off_t>(kHeader + bytes_)) != 0) {
    ::close(file_);
    fail("ftruncate of shared memory");
  }
  map();
  if (mapped_ == nullptr) {
    ::close(file_);
    fail("mmap of shared memory");
  }
  const uint64_t number = random_number();
  std::memcpy(mapped_, &number, sizeof(number));
}

SharedMemory::~SharedMemory() {
  if (mapped_ != nullptr) ::munmap(mapped_, kHeader + bytes_);
  close_door();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::exchange(other.file_, -1)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      bytes_(other.bytes_),
      maker_(other.maker_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(mapped_, other.mapped_);
  std::swap(bytes_, other.bytes_);
  std::swap(maker_, other.maker_);
  return *this;
}

void SharedMemory::map() {
  void* at = ::mmap(nullptr, kHeader + bytes_, PROT_READ | PROT_WRITE,
                    MAP_SHARED, file_, 0);
  if (at != MAP_FAILED) mapped_ = at;
}

std::byte* SharedMemory::data() const {
  return static_cast<std::byte*>(mapped_) + kHeader;
}

std::string SharedMemory::address() const {
  uint64_t number = 0;
  std::memcpy(&number, mapped_, sizeof(number));
  std::ostringstream text;
  text << neighbourhood() << ':' << maker_ << ':' << file_ << ':' << bytes_
       << ':' << number;
  return text.str();
}

std::optional<SharedMemory> SharedMemory::open(const std::string& address) {
  const std::string here = neighbourhood();
  if (here.empty() || !address.starts_with(here + ':')) return std::nullopt;
  std::istringstream text(address.substr(here.size() + 1));
  pid_t maker = 0;
  int file = 0;
  uint64_t number = 0;
  SharedMemory memory;
  char colon = 0;
  text >> maker >> colon >> file >> colon >> memory.bytes_ >> colon >> number;
  if (!text) return std::nullopt;
  std::ostringstream path;
  path << "/proc/" << maker << "/fd/" << file;
  // Another kind of file under this number might block, or act.
  struct stat found {};
  if (::stat(path.str().c_str(), &found) != 0 || !S_ISREG(found.st_mode) ||
      found.st_size != static_cast<off_t>(kHeader + memory.bytes_)) {
    return std::nullopt;
  }
  memory.maker_ = maker;
  memory.file_ = ::open(path.str().c_str(), O_RDWR | O_CLOEXEC);
  if (memory.file_ < 0) return std::nullopt;
  memory.map();
  memory.close_door();
  if (memory.mapped_ == nullptr ||
      std::memcmp(memory.mapped_, &number, sizeof(number)) != 0) {
    return std::nullopt;
  }
  return memory;
}

void SharedMemory::close_door() noexcept {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

}  // namespace tessera
