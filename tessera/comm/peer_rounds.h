// Cuts what one rank sends to another into rounds that fit a window. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// A stretch of one part, and where it lies in the window.
struct PeerPiece {
  size_t part = 0;
  int64_t offset = 0;  // bytes, in the part
  int64_t bytes = 0;
  int64_t place = 0;  // bytes, in the window
  bool operator==(const PeerPiece&) const = default;
};

/// Places and cuts are multiples of it, so that pieces can be read 16 bytes at
/// a time wherever the parts can.
inline constexpr int64_t kPeerAlignment = 256;

/// The most ranks that copy from each other.
inline constexpr int kMostPeerRanks = 16;

/// MiB of the window that each rank has for each communicator, unless it is
/// told otherwise: large enough to hide the meetings of the ranks. A call fills
/// one half of it while the peers read the other.
inline constexpr int64_t kPeerWindowMib = 64;
inline constexpr int64_t kMostPeerWindowMib = 4096;

/// The pieces of each round, in order; parts without bytes have none.
/// `capacity`: bytes of the window, a multiple of kPeerAlignment.
[[nodiscard]] std::vector<std::vector<PeerPiece>> plan_peer_rounds(
    std::span<const int64_t> part_bytes, int64_t capacity);

}  // namespace tessera
