#include "tessera/comm/peer_rounds.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera {
namespace {

int64_t rounded_up(int64_t bytes) {
  return (bytes + kPeerAlignment - 1) / kPeerAlignment * kPeerAlignment;
}

}  // namespace

std::vector<std::vector<PeerPiece>> plan_peer_rounds(
    std::span<const int64_t> part_bytes, int64_t capacity) {
  require(capacity > 0 && capacity % kPeerAlignment == 0, [&] {
    return str("plan_peer_rounds: got a window of ", capacity,
               " bytes; expected a positive multiple of ", kPeerAlignment, ".");
  });
  std::vector<std::vector<PeerPiece>> rounds;
  int64_t place = capacity;  // the first piece begins a round
  for (size_t part = 0; part < part_bytes.size(); ++part) {
    for (int64_t offset = 0; offset < part_bytes[part];) {
      if (place >= capacity) {
        rounds.emplace_back();
        place = 0;
      }
      const int64_t bytes =
          std::min(part_bytes[part] - offset, capacity - place);
      rounds.back().push_back(
          {.part = part, .offset = offset, .bytes = bytes, .place = place});
      offset += bytes;
      place += rounded_up(bytes);
    }
  }
  return rounds;
}

}  // namespace tessera
