// A stream of bytes from one writer to one reader through shared memory.
//
//   | written | read |  data, used round and round  |
//
// Neither side ever waits: `write` takes what there is room for, `read` gives
// what is there. Both may be in different processes. Torch-free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tessera {

class ByteRing {
 public:
  /// Bytes of memory that a ring of this capacity takes.
  [[nodiscard]] static size_t memory_for(size_t capacity);

  /// Over zero bytes an empty ring; over a ring in use the same ring.
  /// `memory` is aligned to 64 bytes, `capacity` a power of two.
  ByteRing(std::byte* memory, size_t capacity);

  /// Returns how many of the bytes were taken.
  size_t write(const std::byte* from, size_t bytes) noexcept;
  /// Returns how many bytes were given.
  size_t read(std::byte* to, size_t bytes) noexcept;

  [[nodiscard]] size_t readable() const noexcept;

 private:
  // Each on a line of its own: the sides do not slow each other down.
  struct Positions {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
  };

  Positions* positions_;
  std::byte* data_;
  size_t capacity_;
};

}  // namespace tessera
