#include "tessera/shard/gather_order.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Units = std::vector<size_t>;

void run_pass(GatherOrder& order, const Units& units) {
  for (const size_t unit : units) order.note(unit);
  order.end_pass();
}

TEST(GatherOrder, KnowsNothingInTheFirstPass) {
  GatherOrder order;
  EXPECT_EQ(order.ahead(2), Units());
  order.note(0);
  EXPECT_EQ(order.ahead(2), Units());
}

TEST(GatherOrder, ForeseesWhatTheLastPassDid) {
  GatherOrder order;
  run_pass(order, {0, 2, 2, 1, 0});
  EXPECT_EQ(order.ahead(9), Units()) << "before the pass has begun";
  const Units pass = {0, 2, 2, 1, 0};
  for (size_t i = 0; i < pass.size(); ++i) {
    order.note(pass[i]);
    const Units rest(pass.begin() + i + 1, pass.end());
    EXPECT_EQ(order.ahead(9), rest);
    EXPECT_EQ(order.ahead(0), Units());
    EXPECT_EQ(order.ahead(1).size(), rest.empty() ? 0U : 1U);
  }
}

TEST(GatherOrder, ForeseesNothingOnceAPassGoesItsOwnWay) {
  GatherOrder order;
  run_pass(order, {0, 1, 2, 3});
  order.note(0);
  order.note(2);
  EXPECT_EQ(order.ahead(1), Units());
  order.note(2);  // as learned at this place, but not by the same way
  EXPECT_EQ(order.ahead(1), Units());
  order.end_pass();
  order.note(0);
  EXPECT_EQ(order.ahead(1), Units({2})) << "the new way is learned";
}

TEST(GatherOrder, ForeseesNothingBehindTheEndOfALongerPass) {
  GatherOrder order;
  run_pass(order, {0, 1});
  for (const size_t unit : {0, 1, 2}) order.note(unit);
  EXPECT_EQ(order.ahead(1), Units());
}

TEST(GatherOrder, LearnsNothingFromAPassThatFailedOrNeverBegan) {
  GatherOrder order;
  run_pass(order, {0, 1, 2});
  order.note(5);
  order.drop_pass();
  order.end_pass();
  order.note(0);
  EXPECT_EQ(order.ahead(1), Units({1}));
}

TEST(GatherOrder, ForgetsWhenTheUnitsChange) {
  GatherOrder order;
  run_pass(order, {0, 1});
  order.clear();
  order.note(0);
  EXPECT_EQ(order.ahead(1), Units());
  EXPECT_TRUE(order.began_with(0));
  EXPECT_FALSE(order.began_with(1));
}

TEST(GatherOrder, DoesNotGrowWithoutEnd) {
  GatherOrder order;
  run_pass(order, {0, 1, 2});
  for (size_t i = 0; i < 70'000; ++i) order.note(i);
  EXPECT_FALSE(order.began_with(0));
}

}  // namespace
}  // namespace tessera
