// Whole multiples of positive numbers.
#pragma once

#include <cstdint>

namespace tessera {

[[nodiscard]] constexpr int64_t ceil_div(int64_t value, int64_t by) {
  return (value + by - 1) / by;
}

[[nodiscard]] constexpr int64_t round_up(int64_t value, int64_t step) {
  return ceil_div(value, step) * step;
}

}  // namespace tessera
