#include "tessera/comm/byte_ring.h"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

// What is written becomes visible in pieces, so that the reader runs alongside.
constexpr size_t kPiece = 64 << 10;

}  // namespace

size_t ByteRing::memory_for(size_t capacity) {
  return sizeof(Positions) + capacity;
}

ByteRing::ByteRing(std::byte* memory, size_t capacity)
    : positions_(reinterpret_cast<Positions*>(memory)),
      data_(memory + sizeof(Positions)),
      capacity_(capacity) {}

size_t ByteRing::write(const std::byte* from, size_t bytes) noexcept {
  uint64_t at = positions_->written.load(std::memory_order_relaxed);
  size_t done = 0;
  while (done < bytes) {
    const uint64_t read = positions_->read.load(std::memory_order_acquire);
    const size_t offset = at & (capacity_ - 1);
    const size_t piece =
        std::min({bytes - done, capacity_ - static_cast<size_t>(at - read),
                  capacity_ - offset, kPiece});
    if (piece == 0) break;
    std::memcpy(data_ + offset, from + done, piece);
    done += piece;
    at += piece;
    positions_->written.store(at, std::memory_order_release);
  }
  return done;
}

size_t ByteRing::read(std::byte* to, size_t bytes) noexcept {
  uint64_t at = positions_->read.load(std::memory_order_relaxed);
  size_t done = 0;
  while (done < bytes) {
    const uint64_t written =
        positions_->written.load(std::memory_order_acquire);
    const size_t offset = at & (capacity_ - 1);
    const size_t piece =
        std::min({bytes - done, static_cast<size_t>(written - at),
                  capacity_ - offset, kPiece});
    if (piece == 0) break;
    std::memcpy(to + done, data_ + offset, piece);
    done += piece;
    at += piece;
    positions_->read.store(at, std::memory_order_release);
  }
  return done;
}

size_t ByteRing::readable() const noexcept {
  return positions_->written.load(std::memory_order_acquire) -
         positions_->read.load(std::memory_order_relaxed);
}

}  // namespace tessera
