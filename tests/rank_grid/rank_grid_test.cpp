#include "tessera/mesh/rank_grid.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Axes = std::vector<std::string>;
using Ranks = std::vector<int>;

TEST(RankGrid, CountsRowMajorAlongNamedAxes) {
  const RankGrid grid({2, 3}, {"replicate", "shard"});
  EXPECT_EQ(grid.ranks(), (Ranks{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(grid.coordinates(4), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(grid.coordinate("replicate", 2), 0);
  EXPECT_EQ(grid.coordinate("shard", 2), 2);
  EXPECT_EQ(grid.size("shard"), 3);
  EXPECT_EQ(grid.numel(), 6);
  EXPECT_TRUE(grid.has_axis("shard"));
  EXPECT_FALSE(grid.has_axis("tp"));
  EXPECT_EQ(grid.describe(), "(replicate: 2, shard: 3)");
}

TEST(RankGrid, SlicesTheRowAndTheColumnOfARank) {
  const RankGrid grid({2, 3}, {"replicate", "shard"});
  EXPECT_EQ(grid.slice({"shard"}, 4).ranks(), (Ranks{3, 4, 5}));
  EXPECT_EQ(grid.slice({"replicate"}, 4).ranks(), (Ranks{1, 4}));
  EXPECT_EQ(grid.slice({"replicate", "shard"}, 4), grid);
}

TEST(RankGrid, SlicesTwoOfThreeAxes) {
  const RankGrid grid({2, 2, 3}, {"a", "b", "c"});
  const RankGrid slice = grid.slice({"a", "c"}, 4);  // a 0, b 1, c 1
  EXPECT_EQ(slice.ranks(), (Ranks{3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(slice.shape(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(slice.axes(), (Axes{"a", "c"}));
  EXPECT_EQ(slice.slice({"a"}, 10).ranks(), (Ranks{4, 10}));
}

TEST(RankGrid, FlattensASliceInItsOrder) {
  const RankGrid grid({2, 2, 2}, {"a", "b", "c"});
  const RankGrid flat = grid.slice({"a", "c"}, 2).flatten("ac");
  EXPECT_EQ(flat.ranks(), (Ranks{2, 3, 6, 7}));
  EXPECT_EQ(flat.shape(), (std::vector<int64_t>{4}));
  EXPECT_EQ(flat.coordinate("ac", 6), 2);
}

// Along any axes: slices hold the rank, agree among their ranks, and together
// cover the grid once.
TEST(RankGrid, SlicesPartitionEveryGridOfUpToFourPerAxis) {
  const Axes names = {"a", "b", "c"};
  const std::vector<Axes> choices = {{"a"},      {"b"},      {"c"},
                                     {"a", "b"}, {"a", "c"}, {"b", "c"}};
  for (int64_t a = 1; a <= 4; ++a) {
    for (int64_t b = 1; b <= 4; ++b) {
      for (int64_t c = 1; c <= 4; ++c) {
        const RankGrid grid({a, b, c}, names);
        for (const Axes& axes : choices) {
          std::multiset<Ranks> slices;
          for (const int rank : grid.ranks()) {
            const RankGrid slice = grid.slice(axes, rank);
            slices.insert(slice.ranks());
            EXPECT_EQ(slice.slice(axes, rank), slice);
            EXPECT_NO_THROW((void)slice.coordinates(rank));
          }
          std::multiset<int> covered;
          for (const Ranks& ranks : slices) {
            EXPECT_EQ(slices.count(ranks), ranks.size());
            covered.insert(ranks.begin(), ranks.end());
          }
          for (const int rank : grid.ranks()) {
            EXPECT_EQ(covered.count(rank),
                      grid.slice(axes, rank).ranks().size());
          }
        }
      }
    }
  }
}

TEST(RankGrid, RefusesShapesAndNamesThatMakeNoGrid) {
  EXPECT_THROW(RankGrid({}, {}), InvalidArgument);
  EXPECT_THROW(RankGrid({1, 1, 1, 1}, {"a", "b", "c", "d"}), InvalidArgument);
  EXPECT_THROW(RankGrid({2, 0}, {"a", "b"}), InvalidArgument);
  EXPECT_THROW(RankGrid({-2}, {"a"}), InvalidArgument);
  EXPECT_THROW(RankGrid({2, 2}, {"a"}), InvalidArgument);
  EXPECT_THROW(RankGrid({2, 2}, {"a", "a"}), InvalidArgument);
  EXPECT_THROW(RankGrid({2}, {""}), InvalidArgument);
}

TEST(RankGrid, RefusesUnknownRepeatedAndReorderedAxes) {
  const RankGrid grid({2, 2}, {"a", "b"});
  EXPECT_THROW((void)grid.slice({"x"}, 0), InvalidArgument);
  EXPECT_THROW((void)grid.slice({}, 0), InvalidArgument);
  EXPECT_THROW((void)grid.slice({"a", "a"}, 0), InvalidArgument);
  EXPECT_THROW((void)grid.slice({"b", "a"}, 0), InvalidArgument);
  EXPECT_THROW((void)grid.slice({"a"}, 4), InvalidArgument);
  EXPECT_THROW((void)grid.size("x"), InvalidArgument);
  EXPECT_THROW((void)grid.flatten(""), InvalidArgument);
}

TEST(RankGrid, NamesTheAxesItHasWhenAskedForAnother) {
  const RankGrid grid({2, 3}, {"replicate", "shard"});
  try {
    (void)grid.size("tp");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()),
              "mesh: no axis 'tp'; this mesh is (replicate: 2, shard: 3).");
  }
}

}  // namespace
}  // namespace tessera
