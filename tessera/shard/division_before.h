#pragma once

#include <cstdint>

namespace tessera {

/// The power of two that a sum over `ranks` of half numbers is divided by before
/// it is taken, so that neither end overflows (the rest comes after).
[[nodiscard]] constexpr int64_t division_before(int64_t ranks) {
  int64_t before = 1;
  while (ranks % before == 0 && ranks / before > before) before *= 2;
  return before;
}

}  // namespace tessera
