// How far backward is in a unit, in reads of its parameters: what one pass
// counts tells the next. Pure.
#pragma once

#include <cstddef>

namespace tessera {

class ReadProgress {
 public:
  /// One more read of this pass. The first pass knows nothing.
  void note() { ++now_; }
  /// Whether the read is the first behind this share of all.
  [[nodiscard]] bool reaches(size_t numerator, size_t denominator) const {
    const auto is_behind = [&](size_t reads) {
      return reads * denominator > learned_ * numerator;
    };
    return learned_ > 0 && is_behind(now_) && !is_behind(now_ - 1);
  }
  void end_pass() {
    if (now_ > 0) learned_ = now_;
    now_ = 0;
  }
  void drop_pass() { now_ = 0; }

 private:
  size_t now_ = 0;
  size_t learned_ = 0;
};

}  // namespace tessera
