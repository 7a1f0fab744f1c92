#include "examples/train_text/window_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"

namespace train_text {
namespace {

std::vector<int64_t> positions(WindowOrder& order, int64_t first, int64_t n) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < n; ++i) {
    windows.push_back(order.at(first + i));
  }
  return windows;
}

std::vector<int64_t> all_windows(int64_t n) {
  std::vector<int64_t> windows(n);
  std::iota(windows.begin(), windows.end(), int64_t{0});
  return windows;
}

TEST(WindowOrder, EveryEpochHoldsEveryWindowOnce) {
  for (const int64_t n : {1, 2, 7, 64, 101}) {
    WindowOrder order(n, 3);
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      auto windows = positions(order, epoch * n, n);
      std::sort(windows.begin(), windows.end());
      EXPECT_EQ(windows, all_windows(n)) << n << " windows, epoch " << epoch;
    }
  }
}

TEST(WindowOrder, RanksTogetherSeeEveryWindowOnceInAnEpoch) {
  constexpr int64_t kBatch = 3;
  for (int64_t world = 1; world <= 4; ++world) {
    const int64_t steps = 5;
    const int64_t n = steps * world * kBatch;
    std::vector<int64_t> seen;
    for (int64_t rank = 0; rank < world; ++rank) {
      WindowOrder order(n, 8);
      for (int64_t step = 0; step < steps; ++step) {
        const auto batch = order.batch(step, kBatch, rank, world);
        EXPECT_EQ(static_cast<int64_t>(batch.size()), kBatch);
        seen.insert(seen.end(), batch.begin(), batch.end());
      }
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, all_windows(n)) << world << " ranks";
  }
}

TEST(WindowOrder, AStepHoldsTheSameWindowsAtAnyNumberOfRanks) {
  constexpr int64_t kTogether = 12;
  for (int64_t step = 0; step < 9; ++step) {  // crosses into a third epoch
    WindowOrder one(50, 5);
    const auto expected = one.batch(step, kTogether, 0, 1);
    for (const int64_t world : {2, 3, 4}) {
      std::vector<int64_t> joined;
      for (int64_t rank = 0; rank < world; ++rank) {
        WindowOrder order(50, 5);
        const auto part = order.batch(step, kTogether / world, rank, world);
        joined.insert(joined.end(), part.begin(), part.end());
      }
      EXPECT_EQ(joined, expected) << "step " << step << ", " << world;
    }
  }
}

TEST(WindowOrder, SeedAndEpochDecideTheOrder) {
  WindowOrder a(100, 1), same(100, 1), other(100, 2), high(100, 1ull << 32 | 1);
  const auto first = positions(a, 0, 100);
  EXPECT_EQ(positions(same, 0, 100), first);
  EXPECT_NE(positions(other, 0, 100), first);
  EXPECT_NE(positions(high, 0, 100), first);
  EXPECT_NE(positions(a, 100, 100), first);
}

TEST(WindowOrder, APositionDoesNotDependOnWhatWasAskedBefore) {
  WindowOrder forward(10, 4), backward(10, 4);
  const auto expected = positions(forward, 0, 30);
  for (int64_t position = 29; position >= 0; --position) {
    EXPECT_EQ(backward.at(position), expected[position]);
  }
}

// Recorded once: a saved run must find its order again on any machine.
TEST(WindowOrder, IsTheSameOnEveryMachine) {
  WindowOrder order(8, 42);
  EXPECT_EQ(positions(order, 0, 8),
            (std::vector<int64_t>{7, 6, 3, 5, 2, 4, 1, 0}));
}

TEST(WindowOrder, RefusesATextWithoutWindows) {
  EXPECT_THROW(WindowOrder(0, 1), tessera::InvalidArgument);
}

}  // namespace
}  // namespace train_text
