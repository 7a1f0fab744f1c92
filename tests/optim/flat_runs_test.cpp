#include "tessera/optim/flat_runs.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "test_shards.h"

namespace tessera {
namespace {

using testing::TestShards;
using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // offset, numel

class FlatRunsTest : public ::testing::Test {
 protected:
  // Pieces at 0, 2, (gap of 3) 9, 13, (gap of 3) 21; the empty one has none.
  FlatRunsTest()
      : full_{torch::ones({2}), torch::ones({4}), torch::ones({4}),
              torch::ones({5}), torch::ones({0}), torch::ones({1})},
        own_(full_) {
    own_.set_gradients(full_);
  }

  Ranges join(const std::vector<std::pair<size_t, size_t>>& added, Gaps gaps) {
    FlatRuns runs;
    for (auto [index, kind] : added) {
      const at::Tensor& shard = own_.shards()[index];
      EXPECT_TRUE(runs.add(*spread_of(shard), shard.grad(), kind));
    }
    Ranges ranges;
    for (const FlatRun& run : runs.join(gaps)) {
      ranges.emplace_back(run.offset, run.numel);
    }
    return ranges;
  }

  std::vector<at::Tensor> full_;
  TestShards own_;
};

TEST_F(FlatRunsTest, JoinsPiecesThatTouch) {
  EXPECT_EQ(join({{0, 0}, {1, 0}, {2, 0}, {3, 0}, {5, 0}}, Gaps::apart),
            (Ranges{{0, 6}, {9, 9}, {21, 1}}));
}

TEST_F(FlatRunsTest, BridgesGapsBetweenNeighbours) {
  EXPECT_EQ(join({{0, 0}, {1, 0}, {2, 0}, {3, 0}, {5, 0}}, Gaps::bridged),
            (Ranges{{0, 22}}));
}

TEST_F(FlatRunsTest, NeverCoversAPieceThatWasNotAdded) {
  EXPECT_EQ(join({{0, 0}, {2, 0}, {3, 0}}, Gaps::bridged),
            (Ranges{{0, 2}, {9, 9}}));
}

TEST_F(FlatRunsTest, KeepsKindsApart) {
  EXPECT_EQ(join({{0, 0}, {1, 1}, {2, 1}}, Gaps::bridged),
            (Ranges{{0, 2}, {2, 11}}));
}

TEST_F(FlatRunsTest, TakesPiecesInAnyOrderAndEmptyOnes) {
  EXPECT_EQ(join({{3, 0}, {4, 0}, {1, 0}, {2, 0}}, Gaps::bridged),
            (Ranges{{2, 16}}));
  EXPECT_EQ(join({{4, 0}}, Gaps::apart), Ranges{});
}

TEST_F(FlatRunsTest, KnowsWhichGradientsLieElsewhere) {
  FlatRuns runs;
  const Spread& spread = *spread_of(own_.shards()[1]);
  const at::Tensor right = own_.shards()[1].grad();
  EXPECT_FALSE(runs.add(spread, torch::ones({4})));
  EXPECT_FALSE(runs.add(spread, own_.shards()[2].grad()));
  EXPECT_FALSE(runs.add(spread, local(right).narrow(0, 0, 3)));
  EXPECT_FALSE(runs.add(spread, local(right).expand({2, 4})));
  EXPECT_TRUE(runs.join(Gaps::apart).empty());
  EXPECT_TRUE(runs.add(spread, right));
}

TEST_F(FlatRunsTest, RangesShareMemoryWithTheFlatGradient) {
  FlatRuns runs;
  const at::Tensor& shard = own_.shards()[1];
  ASSERT_TRUE(runs.add(*spread_of(shard), shard.grad()));
  const FlatRun run = runs.join(Gaps::apart).at(0);
  run.of(run.flat_gradient).fill_(7);
  EXPECT_TRUE(local(shard.grad()).eq(7).all().item<bool>());
  EXPECT_TRUE(local(own_.shards()[0].grad()).eq(1).all().item<bool>());
}

TEST_F(FlatRunsTest, RefusesAPieceThatItsMasterDoesNotList) {
  Spread spread = *spread_of(own_.shards()[1]);
  own_.master()->pieces.erase(own_.master()->pieces.begin() + 1);
  FlatRuns runs;
  EXPECT_THROW((void)runs.add(spread, own_.shards()[1].grad()), InvalidState);
}

}  // namespace
}  // namespace tessera
