#include "tessera/base/log.h"

#include <gtest/gtest.h>

#include <thread>

namespace tessera {
namespace {

template <class Body>
std::string written(Body&& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST(Log, StartsALineWithRankAndLevel) {
  const ThreadLogRank rank(3);
  EXPECT_EQ(written([] { log_warning("unit ", 7, " is large"); }),
            "[tessera rank 3] warning: unit 7 is large\n");
}

TEST(Log, LeavesDebugLinesOutByDefault) {
  EXPECT_FALSE(logs(LogLevel::debug));
  EXPECT_EQ(written([] { log_debug("x"); }), "");
  EXPECT_NE(written([] { log_info("x"); }), "");
}

TEST(Log, ThreadsHaveRanksOfTheirOwn) {
  const ThreadLogRank rank(0);
  std::optional<int> seen;
  std::thread([&] {
    EXPECT_EQ(log_rank(), std::nullopt);
    const ThreadLogRank other(5);
    seen = log_rank();
  }).join();
  EXPECT_EQ(seen, 5);
  EXPECT_EQ(log_rank(), 0);
}

TEST(Log, AThreadRankEndsWithItsScope) {
  const ThreadLogRank outer(1);
  {
    const ThreadLogRank inner(2);
    EXPECT_EQ(log_rank(), 2);
  }
  EXPECT_EQ(log_rank(), 1);
}

TEST(LogOnce, WritesEachLineOncePerRank) {
  const auto say = [] { log_once(LogLevel::warning, "said once"); };
  EXPECT_NE(written(say), "");
  EXPECT_EQ(written(say), "");
  const ThreadLogRank rank(4);
  EXPECT_EQ(written(say), "[tessera rank 4] warning: said once\n");
  EXPECT_EQ(written(say), "");
}

}  // namespace
}  // namespace tessera
