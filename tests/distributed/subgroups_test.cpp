// Divisions of the world and of a group.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"
#include "tests/distributed/group_checks.h"

namespace tessera::distributed {
namespace {

TEST(Subgroups, DivideTheWorldIntoRanksThatFollowEachOther) {
  run_ranks(
      4,
      [](const World& world) {
        const Subgroups pairs =
            new_subgroups(world, 2, {.description = "pair"});
        ASSERT_EQ(pairs.all.size(), 2u);
        const int first = world.rank() / 2 * 2;
        EXPECT_EQ(pairs.own.ranks(), (std::vector<int>{first, first + 1}));
        EXPECT_EQ(pairs.own.description(), "pair");
        EXPECT_EQ(pairs.all[1].is_member(), world.rank() >= 2);
        EXPECT_EQ(sum_of_ranks(pairs.own), 3);

        const auto odd = new_group(world, {1, 3});
        const Subgroups alone = new_subgroups(odd, 1);
        EXPECT_EQ(alone.all.size(), 2u);
        EXPECT_EQ(alone.own.is_member(), world.rank() % 2 == 1);
        if (!alone.own.is_member()) return;
        EXPECT_EQ(sum_of_ranks(alone.own), 1);
      },
      kTimeout);
}

TEST(Subgroups, TakeRanksAsTheyAreListedAndLeaveSomeOut) {
  run_ranks(
      4,
      [](const World& world) {
        const Subgroups made =
            new_subgroups_by_enumeration(world, {{3, 0}, {2}});
        EXPECT_EQ(made.own.is_member(), world.rank() != 1);
        EXPECT_EQ(made.all[0].ranks(), (std::vector<int>{0, 3}));
        if (world.rank() == 1) return;
        EXPECT_EQ(sum_of_ranks(made.own), world.rank() == 2 ? 1 : 3);
      },
      kTimeout);
}

TEST(Subgroups, AreRefusedBeforeAnyIsMade) {
  run_ranks(
      2,
      [](const World& world) {
        const auto refused = [](auto&& make) {
          return message_of<InvalidArgument>(
              [&] { static_cast<void>(make()); });
        };
        const auto group = new_group(world);
        EXPECT_TRUE(contains(refused([&] { return new_subgroups(world, 3); }),
                             "group_size is 3"));
        EXPECT_TRUE(contains(refused([&] { return new_subgroups(world, 0); }),
                             "group_size is 0"));
        for (const std::vector<std::vector<int>>& lists :
             {std::vector<std::vector<int>>{},
              {{0}, {}},
              {{0, 1}, {1}},
              {{2}},
              {{-1}}}) {
          EXPECT_TRUE(contains(refused([&] {
                                 return new_subgroups_by_enumeration(world,
                                                                     lists);
                               }),
                               "at most once"));
          EXPECT_TRUE(contains(
              refused([&] { return split_group(group, lists); }), "split"));
        }
        EXPECT_EQ(sum_of_ranks(new_group(world)), 3);
      },
      kTimeout);
}

TEST(SplitGroup, TakesRanksOfTheParentAndIsCalledByItsMembersAlone) {
  run_ranks(
      4,
      [](const World& world) {
        const auto parent = new_group(world, {1, 2, 3},
                                      {.timeout = 7s, .description = "parent"});
        if (world.rank() == 0) {
          EXPECT_THROW(static_cast<void>(split_group(parent, {{0}})),
                       InvalidArgument);
          return;
        }
        for (int i = 0; i < 2; ++i) {  // groups of the same ranks, once more
          const auto split = split_group(parent, {{0, 2}});
          EXPECT_EQ(split.is_member(), world.rank() != 2);
          EXPECT_EQ(split.ranks(), (std::vector<int>{1, 3}));
          if (!split.is_member()) continue;
          EXPECT_EQ(split.timeout(), 7s);
          EXPECT_EQ(split.description(), "parent (split)");
          EXPECT_EQ(sum_of_ranks(split), 3);
        }
        EXPECT_EQ(sum_of_ranks(parent), 6);
      },
      kTimeout);
}

TEST(SplitGroup, OfUnlikeListsIsRefusedOnAll) {
  run_ranks(
      2,
      [](const World& world) {
        const auto parent = new_group(world);
        const std::vector<std::vector<int>> lists = {{0}, {1}};
        const std::vector<std::vector<int>> others = {{0, 1}};
        const std::string message = message_of<InvalidArgument>([&] {
          static_cast<void>(
              split_group(parent, world.rank() == 0 ? lists : others));
        });
        EXPECT_TRUE(contains(message, "{0}, {1}")) << message;
        EXPECT_TRUE(contains(message, "{0,1}")) << message;
        EXPECT_EQ(sum_of_ranks(parent), 3);
      },
      kTimeout);
}

}  // namespace
}  // namespace tessera::distributed
