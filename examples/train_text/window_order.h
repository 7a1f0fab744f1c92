// In which order the windows of a text are trained on.
//
// A pure file: no tensors, no ranks. Position p of the whole run falls into
// epoch p / num_windows, and each epoch is a shuffle of all windows that
// depends on the seed and the epoch's number alone:
//
//   position  0 1 2 3 4 | 5 6 7 8 9 | ...
//   window    3 0 4 1 2 | 1 4 0 2 3 | ...
//
// Rank r of W takes, in step s, positions (s * W + r) * batch and following. So
// the run sees the same windows in the same steps at every W that keeps
// W * batch.
#pragma once

#include <cstdint>
#include <vector>

namespace train_text {

class WindowOrder {
 public:
  /// Errors: InvalidArgument for num_windows < 1.
  WindowOrder(int64_t num_windows, uint64_t seed);

  /// The window at this position of the run. Cost: O(1) within an epoch,
  /// O(num_windows) on entering another.
  [[nodiscard]] int64_t at(int64_t position);

  /// The windows of one rank in one step.
  [[nodiscard]] std::vector<int64_t> batch(int64_t step, int64_t batch_size,
                                           int64_t rank, int64_t world_size);

 private:
  void shuffle(int64_t epoch);

  uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> windows_;
};

}  // namespace train_text
