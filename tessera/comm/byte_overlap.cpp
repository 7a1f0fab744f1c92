#include "tessera/comm/byte_overlap.h"

#include <algorithm>

namespace tessera {

std::vector<ByteOverlap> overlaps(ByteRange range,
                                  std::span<const ByteRange> pieces) {
  std::vector<ByteOverlap> found;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const int64_t begin = std::max(range.begin, pieces[i].begin);
    const int64_t end = std::min(range.end(), pieces[i].end());
    if (begin >= end) continue;
    found.push_back({.piece = i,
                     .in_piece = begin - pieces[i].begin,
                     .in_range = begin - range.begin,
                     .bytes = end - begin});
  }
  return found;
}

std::vector<ByteRange> gaps(ByteRange range,
                            std::span<const ByteRange> pieces) {
  std::vector<ByteRange> found;
  int64_t covered = 0;  // of the range, so far
  for (const ByteOverlap& overlap : overlaps(range, pieces)) {
    if (overlap.in_range > covered) {
      found.push_back({.begin = covered, .bytes = overlap.in_range - covered});
    }
    covered = overlap.in_range + overlap.bytes;
  }
  if (covered < range.bytes) {
    found.push_back({.begin = covered, .bytes = range.bytes - covered});
  }
  return found;
}

}  // namespace tessera
