// Which pieces of a buffer lie in a stretch of it, and what none covers. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct ByteRange {
  int64_t begin = 0;
  int64_t bytes = 0;

  [[nodiscard]] int64_t end() const { return begin + bytes; }
  bool operator==(const ByteRange&) const = default;
};

/// What a piece and a range have in common.
struct ByteOverlap {
  size_t piece = 0;
  int64_t in_piece = 0;  // bytes from the begin of the piece
  int64_t in_range = 0;  // ... and of the range
  int64_t bytes = 0;
  bool operator==(const ByteOverlap&) const = default;
};

/// `pieces` come by their begins and do not overlap; empty ones have no part.
[[nodiscard]] std::vector<ByteOverlap> overlaps(
    ByteRange range, std::span<const ByteRange> pieces);

/// What of `range` no piece covers, from its begin on.
[[nodiscard]] std::vector<ByteRange> gaps(ByteRange range,
                                          std::span<const ByteRange> pieces);

}  // namespace tessera
