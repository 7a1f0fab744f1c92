// A rectangular piece of a global tensor.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

/// `offsets[d] .. offsets[d] + lengths[d]` along each dim of the global tensor.
struct Box {
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;

  [[nodiscard]] int64_t numel() const {
    int64_t n = 1;
    for (int64_t length : lengths) n *= length;
    return n;
  }
  bool operator==(const Box&) const = default;
};

}  // namespace tessera
