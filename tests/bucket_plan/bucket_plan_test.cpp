#include "tessera/parallel/bucket_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tessera {
namespace {

using Buckets = std::vector<std::vector<size_t>>;

std::vector<size_t> in_order(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

TEST(BucketPlan, ABucketEndsWithTheItemThatReachesItsCap) {
  const std::vector<BucketItem> items = {{3}, {9}, {30}, {2}};
  EXPECT_EQ(plan_buckets(items, in_order(4), {10, 25}),
            (Buckets{{0, 1}, {2}, {3}}));
}

TEST(BucketPlan, TheFirstCapIsForTheFirstBucketOnly) {
  const std::vector<BucketItem> items = {{1}, {1}, {1}, {1}, {1}};
  EXPECT_EQ(plan_buckets(items, in_order(5), {1, 3}),
            (Buckets{{0}, {1, 2, 3}, {4}}));
}

TEST(BucketPlan, FollowsTheGivenOrder) {
  const std::vector<BucketItem> items = {{4}, {4}, {4}};
  const std::vector<size_t> order = {2, 0, 1};
  EXPECT_EQ(plan_buckets(items, order, {8, 8}), (Buckets{{2, 0}, {1}}));
}

TEST(BucketPlan, KindsNeverShareABucketAndEachHasAFirstOne) {
  const std::vector<BucketItem> items = {{5, 0}, {5, 1}, {5, 0},
                                         {5, 1}, {5, 0}, {5, 1}};
  EXPECT_EQ(plan_buckets(items, in_order(6), {5, 10}),
            (Buckets{{0}, {1}, {2, 4}, {3, 5}}));
}

TEST(BucketPlan, WhatIsLeftOverComesLastByItsFirstItem) {
  const std::vector<BucketItem> items = {{1, 1}, {1, 0}, {100, 2}, {1, 1}};
  EXPECT_EQ(plan_buckets(items, in_order(4), {50, 50}),
            (Buckets{{2}, {0, 3}, {1}}));
}

TEST(BucketPlan, NothingGivesNothing) {
  EXPECT_TRUE(plan_buckets({}, {}, {1, 1}).empty());
}

TEST(BucketPlan, EveryItemIsInOneBucketAndNoneIsFullBeforeItsLast) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<BucketItem> items(random() % 40);
    for (auto& item : items) {
      item = {static_cast<int64_t>(random() % 9),
              static_cast<int64_t>(random() % 3)};
    }
    auto order = in_order(items.size());
    std::shuffle(order.begin(), order.end(), random);
    const BucketCaps caps = {static_cast<int64_t>(random() % 8 + 1),
                             static_cast<int64_t>(random() % 20 + 1)};
    std::vector<size_t> seen;
    for (const auto& bucket : plan_buckets(items, order, caps)) {
      ASSERT_FALSE(bucket.empty());
      int64_t bytes = 0;
      for (size_t i = 0; i + 1 < bucket.size(); ++i) {
        bytes += items[bucket[i]].bytes;
        EXPECT_EQ(items[bucket[i]].kind, items[bucket[0]].kind);
      }
      EXPECT_LT(bytes, std::max(caps.first_bytes, caps.rest_bytes));
      seen.insert(seen.end(), bucket.begin(), bucket.end());
    }
    std::ranges::sort(seen);
    EXPECT_EQ(seen, in_order(items.size()));
  }
}

}  // namespace
}  // namespace tessera
