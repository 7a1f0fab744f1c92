// Which of a step's offloaded activations are on the device as it goes on: what
// host_offload.h does, counted. Pure.
//
//   a copy takes 2 parts of forward
//   part       0      1      2      3      4      end of forward
//   leaves                   0             1      2, 3, 4
//   backward   4        3      2      1      0
//   comes      4, 3, 2  1      0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// What a value of so many bytes takes of host memory.
[[nodiscard]] constexpr int64_t offload_host_bytes(int64_t bytes) {
  constexpr int64_t kAlignment = 512;  // as LibTorch's allocators on devices
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// When copies to the host are through, in parts of the model that forward has
/// left behind, each of which takes as long. A copy takes `parts_of_a_copy`
/// of them, and they come one after the other.
class CopySchedule {
 public:
  explicit CopySchedule(double parts_of_a_copy)
      : parts_of_a_copy_(parts_of_a_copy) {}

  /// Of a copy that starts behind so many parts.
  double start(size_t parts) {
    last_ = std::max(last_, static_cast<double>(parts)) + parts_of_a_copy_;
    return last_;
  }
  /// Nothing is under way.
  void restart() { last_ = 0; }

 private:
  double parts_of_a_copy_;
  double last_ = 0;
};

/// So many parts of the model before the one that needs it in backward, what
/// was kept starts to come back.
inline constexpr size_t kOffloadPartsAhead = 2;

/// All numbers are bytes.
class OffloadTimeline {
 public:
  explicit OffloadTimeline(double parts_of_a_copy)
      : schedule_(parts_of_a_copy) {}

  /// Forward is through with a part that keeps so many, maybe none. Returns
  /// what leaves the device.
  int64_t keep(int64_t bytes) {
    parts_.push_back(bytes);
    ends_.push_back(bytes > 0 ? schedule_.start(parts_.size()) : 0);
    return settle(
        [&](double end) { return end <= static_cast<double>(parts_.size()); });
  }
  int64_t end_forward() {
    return settle([](double /*end*/) { return true; });
  }

  /// What comes back when backward comes to this part.
  [[nodiscard]] int64_t come_back(size_t part) const {
    int64_t bytes = 0;
    const bool is_last = part + 1 == parts_.size();
    for (size_t i = 0; i <= part; ++i) {
      const bool starts_here = i + kOffloadPartsAhead == part;
      const bool is_near = i + kOffloadPartsAhead > part;
      if (starts_here || (is_last && is_near)) bytes += parts_[i];
    }
    return bytes;
  }

 private:
  template <class IsThrough>
  int64_t settle(IsThrough is_through) {
    int64_t left = 0;
    for (; num_settled_ < parts_.size() && is_through(ends_[num_settled_]);
         ++num_settled_) {
      left += parts_[num_settled_];
    }
    return left;
  }

  CopySchedule schedule_;
  std::vector<int64_t> parts_;
  std::vector<double> ends_;  // of their copies
  size_t num_settled_ = 0;    // the first ones
};

}  // namespace tessera
