#include "examples/train_text/window_order.h"

#include <numeric>
#include <random>
#include <utility>

#include "tessera/base/error.h"

namespace train_text {

using tessera::InvalidArgument;
using tessera::require;
using tessera::str;

WindowOrder::WindowOrder(int64_t num_windows, uint64_t seed) : seed_(seed) {
  require<InvalidArgument>(num_windows > 0, [&] {
    return str(
        "WindowOrder: ", num_windows,
        " windows; the text must hold at least one sequence and a byte.");
  });
  windows_.resize(num_windows);
}

int64_t WindowOrder::at(int64_t position) {
  const int64_t count = static_cast<int64_t>(windows_.size());
  if (position / count != epoch_) {
    shuffle(position / count);
  }
  return windows_[position % count];
}

std::vector<int64_t> WindowOrder::batch(int64_t step, int64_t batch_size,
                                        int64_t rank, int64_t world_size) {
  std::vector<int64_t> windows(batch_size);
  const int64_t first = (step * world_size + rank) * batch_size;
  for (int64_t i = 0; i < batch_size; ++i) {
    windows[i] = at(first + i);
  }
  return windows;
}

void WindowOrder::shuffle(int64_t epoch) {
  epoch_ = epoch;
  std::iota(windows_.begin(), windows_.end(), int64_t{0});
  // std::shuffle may differ between standard libraries; this does not. The
  // remainder's bias is below 1e-12 for any text.
  std::seed_seq words{seed_ & 0xffffffffu, seed_ >> 32,
                      static_cast<uint64_t>(epoch)};
  std::mt19937_64 random(words);
  for (size_t left = windows_.size(); left > 1; --left) {
    std::swap(windows_[left - 1], windows_[random() % left]);
  }
}

}  // namespace train_text
