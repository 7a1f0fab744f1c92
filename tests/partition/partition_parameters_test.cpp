// The division of parameters among ranks, without torch.
#include "tessera/optim/partition_parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Numels = std::vector<std::vector<int64_t>>;

// The sizes that each rank gets of group `group`.
std::vector<std::vector<int64_t>> sizes_of(const Numels& numels, int num_ranks,
                                           size_t group = 0) {
  std::vector<std::vector<int64_t>> sizes;
  const auto partitions = partition_parameters(numels, num_ranks);
  for (const auto& own : partitions.at(group)) {
    auto& of_rank = sizes.emplace_back();
    for (const size_t i : own) of_rank.push_back(numels[group][i]);
  }
  return sizes;
}

TEST(PartitionParameters, GivesTheLargestToTheRankWithTheLeast) {
  const auto sizes = sizes_of({{5, 3, 9, 1, 4, 4}}, 2);
  EXPECT_EQ(sizes[0], (std::vector<int64_t>{9, 4}));
  EXPECT_EQ(sizes[1], (std::vector<int64_t>{5, 4, 3, 1}));
}

TEST(PartitionParameters, KeepsTheOrderOfEqualOnesAndPrefersLowRanks) {
  const auto partition = partition_parameters({{4, 4, 4, 4, 4}}, 3).at(0);
  EXPECT_EQ(partition[0], (std::vector<size_t>{0, 3}));
  EXPECT_EQ(partition[1], (std::vector<size_t>{1, 4}));
  EXPECT_EQ(partition[2], (std::vector<size_t>{2}));
}

TEST(PartitionParameters, CountsWhatEarlierGroupsGave) {
  const Numels numels = {{10, 1}, {3, 5}};
  EXPECT_EQ(sizes_of(numels, 2, 0)[0], (std::vector<int64_t>{10}));
  EXPECT_EQ(sizes_of(numels, 2, 1)[0], (std::vector<int64_t>{}));
  EXPECT_EQ(sizes_of(numels, 2, 1)[1], (std::vector<int64_t>{5, 3}));
}

TEST(PartitionParameters, LeavesEarlierGroupsWhereTheyWere) {
  Numels numels = {{7, 2, 9}, {4, 4, 1}};
  const auto before = partition_parameters(numels, 3);
  numels.push_back({100, 50});
  auto after = partition_parameters(numels, 3);
  ASSERT_EQ(after.size(), 3U);
  after.pop_back();
  EXPECT_EQ(after, before);
}

TEST(PartitionParameters, LeavesRanksWithoutAnythingWhereThereIsTooLittle) {
  const auto partition = partition_parameters({{6, 2}}, 4).at(0);
  ASSERT_EQ(partition.size(), 4U);
  EXPECT_TRUE(partition[2].empty());
  EXPECT_TRUE(partition[3].empty());
  EXPECT_TRUE(partition_parameters({}, 4).empty());
  EXPECT_EQ(partition_parameters({{}}, 2).at(0).size(), 2U);
}

// What torch.distributed.optim.ZeroRedundancyOptimizer 2.11 gave.
TEST(PartitionParameters, AgreesWithPyTorch) {
  EXPECT_EQ(
      partition_parameters({{5, 3, 9, 1, 4, 4}, {7, 7, 2}}, 3),
      (std::vector<GroupPartition>{{{2}, {0, 1, 3}, {4, 5}}, {{1}, {2}, {0}}}));
  EXPECT_EQ(partition_parameters({{6, 6, 1, 6, 0, 3}, {2, 8}, {5, 5, 5, 1}}, 4),
            (std::vector<GroupPartition>{{{0}, {1}, {3}, {5, 2, 4}},
                                         {{0}, {}, {}, {1}},
                                         {{2}, {0, 3}, {1}, {}}}));
  EXPECT_EQ(partition_parameters({{2, 2, 3}, {9, 1, 1}}, 5),
            (std::vector<GroupPartition>{{{2}, {0}, {1}, {}, {}},
                                         {{}, {}, {}, {0}, {1, 2}}}));
}

// All lists of up to five sizes of 0 to 4.
TEST(PartitionParameters, GivesEachParameterToOneRankWithinTheLargestOne) {
  for (int count = 0; count <= 5; ++count) {
    std::vector<int64_t> numels(static_cast<size_t>(count), 0);
    for (bool more = true; more;) {
      for (int num_ranks = 1; num_ranks <= 4; ++num_ranks) {
        const auto partition = partition_parameters({numels}, num_ranks).at(0);
        std::vector<size_t> all;
        std::vector<int64_t> held;
        for (const auto& own : partition) {
          all.insert(all.end(), own.begin(), own.end());
          held.push_back(0);
          for (const size_t i : own) held.back() += numels[i];
        }
        std::ranges::sort(all);
        std::vector<size_t> each(numels.size());
        std::iota(each.begin(), each.end(), size_t{0});
        ASSERT_EQ(all, each);
        const int64_t largest =
            numels.empty() ? 0 : *std::ranges::max_element(numels);
        ASSERT_LE(std::ranges::max(held) - std::ranges::min(held), largest);
      }
      more = false;
      for (int64_t& numel : numels) {
        more = ++numel <= 4;
        if (more) break;
        numel = 0;
      }
    }
  }
}

TEST(PartitionParameters, RefusesNoRanksAndNegativeSizes) {
  EXPECT_THROW((void)partition_parameters({{1}}, 0), InvalidArgument);
  EXPECT_THROW((void)partition_parameters({{1, -1}}, 2), InvalidArgument);
}

}  // namespace
}  // namespace tessera
