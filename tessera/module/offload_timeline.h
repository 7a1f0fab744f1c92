// Which of a step's offloaded activations are on the device as it goes on: what
// host_offload.h does, counted. Pure.
//
//   forward   keep 0   keep 1   keep 2   keep 3   keep 4   end_forward
//   leaves                               0        1        2, 3, 4
//   backward  begin    need 4   need 3   need 2   need 1   need 0
//   comes     4        3        2        1        0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// What a value of so many bytes takes of host memory.
[[nodiscard]] constexpr int64_t offload_host_bytes(int64_t bytes) {
  constexpr int64_t kAlignment = 512;  // as LibTorch's allocators on devices
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// So many may be copying out at once, and have their memory until then.
inline constexpr size_t kOffloadsUnderWay = 3;

/// All numbers are bytes.
class OffloadTimeline {
 public:
  /// Returns what leaves the device. 0: nothing is kept here.
  int64_t keep(int64_t bytes) {
    if (bytes > 0) kept_.push_back(bytes);
    return settle(kOffloadsUnderWay);
  }
  int64_t end_forward() { return settle(0); }

  /// Returns what comes back.
  int64_t begin_backward() { return kept_.empty() ? 0 : kept_.back(); }
  /// Of `bytes` that were kept, the last that were not needed yet: what was
  /// kept before them comes. 0: nothing was kept here.
  int64_t need(int64_t bytes) {
    if (bytes == 0) return 0;
    kept_.pop_back();
    return begin_backward();
  }

 private:
  int64_t settle(size_t most) {
    int64_t left = 0;
    for (; kept_.size() - num_settled_ > most; ++num_settled_) {
      left += kept_[num_settled_];
    }
    return left;
  }

  std::vector<int64_t> kept_;
  size_t num_settled_ = 0;  // the first ones
};

}  // namespace tessera
