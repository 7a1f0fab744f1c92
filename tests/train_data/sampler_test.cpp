#include "tessera/train/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

/// The windows of the first `steps` steps of all ranks, in the order of their
/// sample numbers.
std::vector<int64_t> run(SamplerOptions options, int64_t steps,
                         int64_t first = 0) {
  std::vector<int64_t> windows;
  std::vector<Sampler> ranks;
  for (int64_t rank = 0; rank < options.world_size; ++rank) {
    options.rank = rank;
    ranks.emplace_back(options);
    ranks.back().seek(first);
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (Sampler& rank : ranks) {
      const auto mine = rank.next();
      windows.insert(windows.end(), mine.begin(), mine.end());
    }
  }
  return windows;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values;
}

std::vector<int64_t> up_to(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

std::vector<int64_t> all_of(const Permutation& permutation, int64_t size) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(permutation.at(i));
  return values;
}

TEST(Permutation, HasEveryElementOnceAtEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      const auto values = all_of(Permutation(size, 11, epoch), size);
      ASSERT_EQ(sorted(values), up_to(size)) << size;
    }
  }
  for (const int64_t size : {1023, 1024, 1025, 4096, 65537, 100003}) {
    ASSERT_EQ(sorted(all_of(Permutation(size, 5, 0), size)), up_to(size));
  }
}

TEST(Permutation, DependsOnSeedAndEpochAlone) {
  const auto of = [](uint64_t seed, uint64_t epoch) {
    return all_of(Permutation(100, seed, epoch), 100);
  };
  EXPECT_EQ(of(1, 0), of(1, 0));
  std::set<std::vector<int64_t>> different;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (uint64_t epoch = 0; epoch < 10; ++epoch) {
      different.insert(of(seed, epoch));
    }
  }
  EXPECT_EQ(different.size(), 100u);
}

TEST(Permutation, MixesLikeChance) {
  // Fixed points and neighbours that stay neighbours are Poisson distributed
  // with mean 1 each; over 200 shuffles the sum stays within 5 deviations.
  constexpr int64_t kSize = 1000;
  constexpr int kShuffles = 200;
  int64_t fixed = 0, neighbours = 0;
  for (uint64_t epoch = 0; epoch < kShuffles; ++epoch) {
    const auto values = all_of(Permutation(kSize, 3, epoch), kSize);
    for (int64_t i = 0; i < kSize; ++i) {
      fixed += values[i] == i;
      if (i > 0) neighbours += values[i] == values[i - 1] + 1;
    }
  }
  const double tolerance = 5 * std::sqrt(double{kShuffles});
  EXPECT_NEAR(static_cast<double>(fixed), kShuffles, tolerance);
  EXPECT_NEAR(static_cast<double>(neighbours), kShuffles, tolerance);
}

TEST(Permutation, SendsEachElementEverywhere) {
  // Element 0 of 50, over 5000 epochs: each place 100 times, 6 deviations.
  std::vector<int> counts(50);
  for (uint64_t epoch = 0; epoch < 5000; ++epoch) {
    ++counts[static_cast<size_t>(Permutation(50, 9, epoch).at(0))];
  }
  for (const int count : counts) EXPECT_NEAR(count, 100, 60);
}

TEST(Sampler, EveryWindowIsUsedOnceInAnEpochAtEveryWorldSize) {
  for (int64_t world_size = 1; world_size <= 4; ++world_size) {
    for (int64_t batch = 1; batch <= 5; ++batch) {
      for (const int64_t n : {1, 2, 3, 7, 16, 29}) {
        const int64_t per_step = world_size * batch;
        const int64_t steps = (3 * n + per_step - 1) / per_step;
        const auto windows = run({.num_windows = n,
                                  .batch = batch,
                                  .seed = 4,
                                  .world_size = world_size},
                                 steps);
        for (int64_t epoch = 0; epoch < 3; ++epoch) {
          const auto first = windows.begin() + epoch * n;
          ASSERT_EQ(sorted({first, first + n}), up_to(n))
              << "ranks " << world_size << ", batch " << batch << ", windows "
              << n << ", epoch " << epoch;
        }
      }
    }
  }
}

TEST(Sampler, TheWorldSizeDoesNotChangeTheOrder) {
  const auto one = run({.num_windows = 23, .batch = 12, .seed = 8}, 10);
  for (const auto& [world_size, batch] :
       {std::pair{2, 6}, {3, 4}, {4, 3}, {6, 2}, {12, 1}}) {
    EXPECT_EQ(run({.num_windows = 23,
                   .batch = batch,
                   .seed = 8,
                   .world_size = world_size},
                  10),
              one);
  }
  // As many samples a step by several forwards: 2 ranks * 3 * 2 forwards.
  EXPECT_EQ(
      run({.num_windows = 23, .batch = 3, .seed = 8, .world_size = 2}, 20),
      one);
}

TEST(Sampler, GoesOnWhereItStoodAtAnotherWorldSize) {
  const auto whole =
      run({.num_windows = 17, .batch = 6, .seed = 2, .world_size = 2}, 6);
  for (int64_t stop = 0; stop <= 6; ++stop) {
    auto windows =
        run({.num_windows = 17, .batch = 6, .seed = 2, .world_size = 2}, stop);
    const auto rest =
        run({.num_windows = 17, .batch = 4, .seed = 2, .world_size = 3},
            6 - stop, stop * 12);
    windows.insert(windows.end(), rest.begin(), rest.end());
    EXPECT_EQ(windows, whole) << stop;
  }
}

TEST(Sampler, UsesTheRestOfAnEpochOnceOnFewerAndOnMoreRanks) {
  const SamplerOptions two{.num_windows = 40, .batch = 2, .world_size = 2};
  const auto begun = run(two, 4);  // 16 of 40
  for (const int64_t world_size : {1, 2, 4}) {
    SamplerOptions rest = two;
    rest.world_size = world_size;
    auto windows = run(rest, 24 / (2 * world_size), 16);
    windows.insert(windows.end(), begun.begin(), begun.end());
    EXPECT_EQ(sorted(windows), up_to(40)) << world_size << " ranks";
  }
}

TEST(Sampler, ItsPositionIsTwoPlainNumbers) {
  Sampler sampler({.num_windows = 10, .batch = 4, .rank = 1, .world_size = 2});
  EXPECT_EQ(sampler.position(), (SamplerPosition{0, 0}));
  (void)sampler.next();
  EXPECT_EQ(sampler.position(), (SamplerPosition{0, 8}));
  (void)sampler.next();
  EXPECT_EQ(sampler.position(), (SamplerPosition{1, 6}));
  EXPECT_EQ(sampler.samples_taken(), 16);
  const auto expected = sampler.next();
  Sampler other({.num_windows = 10, .batch = 4, .rank = 1, .world_size = 2});
  other.seek(SamplerPosition{1, 6});
  EXPECT_EQ(other.samples_taken(), 16);
  EXPECT_EQ(other.next(), expected);
}

TEST(Sampler, RanksMayStandInDifferentEpochs) {
  // 5 windows, two ranks of 3: rank 1's batch lies across the epochs.
  const SamplerOptions options{.num_windows = 5, .batch = 3, .world_size = 2};
  const auto windows = run(options, 5);  // 30 samples, six epochs
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    const auto first = windows.begin() + epoch * 5;
    EXPECT_EQ(sorted({first, first + 5}), up_to(5));
  }
}

TEST(Sampler, RefusesWhatCannotBe) {
  EXPECT_THROW(Sampler({.num_windows = 0}), InvalidArgument);
  EXPECT_THROW(Sampler({.num_windows = 1, .batch = 0}), InvalidArgument);
  EXPECT_THROW(Sampler({.num_windows = 1, .world_size = 0}), InvalidArgument);
  EXPECT_THROW(Sampler({.num_windows = 1, .rank = 1}), InvalidArgument);
  EXPECT_THROW(Sampler({.num_windows = 1, .rank = -1}), InvalidArgument);
  Sampler sampler({.num_windows = 5});
  EXPECT_THROW(sampler.seek(SamplerPosition{0, 5}), InvalidArgument);
  EXPECT_THROW(sampler.seek(SamplerPosition{-1, 0}), InvalidArgument);
  EXPECT_THROW(sampler.seek(SamplerPosition{0, -1}), InvalidArgument);
  EXPECT_THROW(sampler.seek(-1), InvalidArgument);
}

}  // namespace
}  // namespace tessera::train
