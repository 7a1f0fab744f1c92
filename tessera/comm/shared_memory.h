// Memory that processes of one machine share, without a name in the file
// system.
//
//   rank 0: SharedMemory mine(bytes); send mine.address() to rank 1
//   rank 1: auto theirs = SharedMemory::open(address);
//
// It is a memfd that others open by way of /proc: nothing is left behind by a
// crash, and a small /dev/shm does not limit it. Torch-free.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

namespace tessera {

class SharedMemory {
 public:
  /// Zero bytes. Errors: std::system_error when the system gives none.
  explicit SharedMemory(size_t bytes);
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;

  /// What `open` needs, in one word.
  [[nodiscard]] std::string address() const;

  /// Memory of another process, or of this one. None when it cannot be reached:
  /// another machine, another container, another user.
  [[nodiscard]] static std::optional<SharedMemory> open(
      const std::string& address);

  /// From now on nobody can open it; who has, keeps it.
  void close_door() noexcept;

  [[nodiscard]] std::byte* data() const;
  [[nodiscard]] size_t size() const { return bytes_; }
  /// The process that made it.
  [[nodiscard]] pid_t maker() const { return maker_; }

 private:
  SharedMemory() = default;
  void map();

  int file_ = -1;
  void* mapped_ = nullptr;
  size_t bytes_ = 0;
  pid_t maker_ = 0;
};

}  // namespace tessera
