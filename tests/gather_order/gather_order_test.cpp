#include "tessera/shard/gather_order.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Units = std::vector<size_t>;

const SmallUnits kLarge(6, false);

void run_pass(GatherOrder& order, const Units& units) {
  for (const size_t unit : units) order.note(unit);
  order.end_pass();
}

TEST(GatherOrder, KnowsNothingInTheFirstPass) {
  GatherOrder order;
  EXPECT_EQ(order.ahead(2, kLarge), Units());
  order.note(0);
  EXPECT_EQ(order.ahead(2, kLarge), Units());
}

TEST(GatherOrder, ForeseesWhatTheLastPassDid) {
  GatherOrder order;
  run_pass(order, {0, 2, 2, 1, 0});
  EXPECT_EQ(order.ahead(9, kLarge), Units()) << "before the pass has begun";
  const Units pass = {0, 2, 2, 1, 0};
  for (size_t i = 0; i < pass.size(); ++i) {
    order.note(pass[i]);
    const Units rest(pass.begin() + i + 1, pass.end());
    EXPECT_EQ(order.ahead(9, kLarge), rest);
    EXPECT_EQ(order.ahead(0, kLarge), Units());
    EXPECT_EQ(order.ahead(1, kLarge).size(), rest.empty() ? 0U : 1U);
  }
}

TEST(GatherOrder, ForeseesNothingOnceAPassGoesItsOwnWay) {
  GatherOrder order;
  run_pass(order, {0, 1, 2, 3});
  order.note(0);
  order.note(2);
  EXPECT_EQ(order.ahead(1, kLarge), Units());
  order.note(2);  // as learned at this place, but not by the same way
  EXPECT_EQ(order.ahead(1, kLarge), Units());
  order.end_pass();
  order.note(0);
  EXPECT_EQ(order.ahead(1, kLarge), Units({2})) << "the new way is learned";
}

TEST(GatherOrder, ForeseesNothingBehindTheEndOfALongerPass) {
  GatherOrder order;
  run_pass(order, {0, 1});
  for (const size_t unit : {0, 1, 2}) order.note(unit);
  EXPECT_EQ(order.ahead(1, kLarge), Units());
}

TEST(GatherOrder, LooksPastSmallUnits) {
  const SmallUnits small = small_units(std::vector<int64_t>{320, 19, 20, 0});
  EXPECT_EQ(small, SmallUnits({false, true, false, true}));
  GatherOrder order;
  run_pass(order, {0, 1, 3, 2, 1});
  order.note(0);
  EXPECT_EQ(order.ahead(1, small), Units({1, 3, 2}));
  EXPECT_EQ(order.ahead(2, small), Units({1, 3, 2, 1}));
  EXPECT_EQ(order.ahead(0, small), Units());
}

TEST(GatherOrder, KnowsWhenAPassIsNearItsEnd) {
  const SmallUnits small = {false, true, false, false};
  GatherOrder order;
  EXPECT_FALSE(order.ends_within(9, small));
  run_pass(order, {0, 2, 1, 3});
  order.note(0);
  EXPECT_FALSE(order.ends_within(1, small)) << "2 and 3 are left";
  EXPECT_TRUE(order.ends_within(2, small));
  order.note(2);
  EXPECT_TRUE(order.ends_within(1, small)) << "1 is small";
  EXPECT_FALSE(order.ends_within(0, small));
  order.note(3);
  EXPECT_FALSE(order.ends_within(9, small)) << "it goes its own way";
}

TEST(GatherOrder, KnowsHowAPassBegins) {
  const SmallUnits small = {false, true, false, false};
  GatherOrder order;
  EXPECT_FALSE(order.starts_with(0, 9, small));
  run_pass(order, {1, 2, 3});
  EXPECT_TRUE(order.starts_with(1, 1, small));
  EXPECT_TRUE(order.starts_with(2, 1, small));
  EXPECT_FALSE(order.starts_with(3, 1, small));
  EXPECT_TRUE(order.starts_with(3, 2, small));
  EXPECT_FALSE(order.starts_with(1, 0, small));
}

TEST(GatherOrder, LearnsNothingFromAPassThatFailedOrNeverBegan) {
  GatherOrder order;
  run_pass(order, {0, 1, 2});
  order.note(5);
  order.drop_pass();
  order.end_pass();
  order.note(0);
  EXPECT_EQ(order.ahead(1, kLarge), Units({1}));
}

TEST(GatherOrder, ForgetsWhenTheUnitsChange) {
  GatherOrder order;
  run_pass(order, {0, 1});
  order.clear();
  order.note(0);
  EXPECT_EQ(order.ahead(1, kLarge), Units());
  EXPECT_TRUE(order.began_with(0));
  EXPECT_FALSE(order.began_with(1));
}

TEST(GatherOrder, KnowsTheLastThirdOfWhatWasLearned) {
  GatherOrder order;
  order.note(0);
  EXPECT_FALSE(order.in_last_third()) << "nothing is known";
  order.end_pass();
  run_pass(order, {0, 1, 2, 3, 4, 5, 6});
  for (const size_t unit : {0, 1, 2, 3}) {
    order.note(unit);
    EXPECT_FALSE(order.in_last_third()) << unit;
  }
  for (const size_t unit : {4, 5, 6}) {
    order.note(unit);
    EXPECT_TRUE(order.in_last_third()) << unit;
  }
  order.note(7);
  EXPECT_FALSE(order.in_last_third()) << "it goes its own way";
}

TEST(GatherOrder, DoesNotGrowWithoutEnd) {
  GatherOrder order;
  run_pass(order, {0, 1, 2});
  for (size_t i = 0; i < 70'000; ++i) order.note(i);
  EXPECT_FALSE(order.began_with(0));
}

}  // namespace
}  // namespace tessera
