// Which units are gathered when, in a step that goes like the one before: the
// bookkeeping of ShardContext without tensors. Pure.
//
//   prefetch 1    bring 0        bring 1         bring 2
//   gathered      0 and 1        1 and 2         2
//                                (0 freed)       (1 freed)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/shard/backward_overlap.h"
#include "tessera/shard/gather_order.h"

namespace tessera {

class GatherTimeline {
 public:
  enum class Pass { forward, backward };

  /// bytes: of each unit's full parameters.
  GatherTimeline(std::vector<int64_t> bytes, size_t prefetch,
                 BackwardOverlap overlap);

  /// Before `unit` is used: gathers it if it is not yet, and then what comes
  /// next, unless that starts late. Returns the bytes that this adds.
  int64_t bring(size_t unit, Pass pass);
  /// Whether backward is where gathers start late.
  [[nodiscard]] bool starts_late() const;
  /// Gathers what comes next in backward, likewise.
  int64_t start_next();
  /// Returns the bytes that this adds: none, or fewer than none. A unit that
  /// was gathered ahead stays.
  int64_t free(size_t unit);
  /// Likewise, at the end of its forward: it stays for backward where that
  /// would gather it again at once.
  int64_t leave_forward(size_t unit);
  [[nodiscard]] bool is_small(size_t unit) const { return small_[unit]; }
  /// Gathered, and not only ahead.
  [[nodiscard]] bool is_in_use(size_t unit) const {
    return units_[unit].gathered && !units_[unit].is_ahead;
  }
  /// The step is through: the next one follows its order.
  void end_step();

  /// The most bytes at once, and each unit's gathers, since the last
  /// `end_step`.
  [[nodiscard]] int64_t peak() const { return peak_; }
  [[nodiscard]] std::vector<int64_t> num_gathers() const;

 private:
  struct State {
    int64_t bytes = 0;
    int64_t num_gathers = 0;
    bool gathered = false;
    bool is_ahead = false;  // gathered, and not used yet
  };
  int64_t gather(State& state);
  int64_t gather_ahead(const GatherOrder& order);

  std::vector<State> units_;
  const SmallUnits small_;
  const size_t prefetch_;
  const BackwardOverlap overlap_;
  GatherOrder forward_, backward_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

}  // namespace tessera
