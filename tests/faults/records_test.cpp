// What jobs tell of their collectives when asked to: the check before each, and
// the flight record of each rank.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/comm/flight_report.h"
#include "tests/faults/job.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

constexpr int kSize = 3;
constexpr int kPeerFailed = 71;
const Variables kCheck = {{"TESSERA_CHECK_COLLECTIVES", "on"}};

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "'" << part << "' is not in:\n"
      << text;
}

TEST(CollectiveCheck, PassesAJobWhoseRanksDoTheSame) {
  Job job(kSize, {"none", 1}, kCheck);
  for (const Ended& rank : job.end()) {
    EXPECT_EQ(rank.code, 0) << rank.output;
    expect_says(rank.output, "trained");
  }
}

TEST(CollectiveCheck, TellsAllRanksOfTheFirstDifferenceAtOnce) {
  Job job(kSize, {"order", 1}, kCheck);
  for (const Ended& rank : job.end()) {
    EXPECT_EQ(rank.code, kPeerFailed) << rank.output;
    EXPECT_LT(rank.seconds, kTimeout.count()) << rank.output;
    expect_says(rank.output,
                "the ranks call different collectives on 'dp_shard/gather#1'; "
                "the first difference is the unit: rank ");
    expect_says(rank.output, "calls all_gather of unit 'second' (72 Float");
    expect_says(rank.output, "rank 1 calls all_gather of unit 'third' (72 Fl");
  }
}

TEST(CollectiveCheck, RefusesAnotherValueThanOnAndOff) {
  Job job(2, {"none", 1}, {{"TESSERA_CHECK_COLLECTIVES", "yes"}});
  for (const Ended& rank : job.end()) {
    EXPECT_EQ(rank.code, 2) << rank.output;
    expect_says(rank.output, "TESSERA_CHECK_COLLECTIVES is 'yes'");
  }
}

// Two jobs that run beside each other.
TEST(FlightRecord, IsWrittenByEachRankThatCanAndNamed) {
  const testing::TemporaryFolder folder;
  const std::string hangs = folder / "hang";
  const std::string killed = folder / "kill";
  Job hanging(kSize, {"hang", 1}, {{"TESSERA_FLIGHT_FOLDER", hangs}});
  Job losing(kSize, {"kill", 1}, {{"TESSERA_FLIGHT_FOLDER", killed}});
  const std::vector<Ended> ranks = hanging.end();
  for (const int rank : {0, 2}) {
    expect_says(ranks[rank].output, "Flight record: " + hangs +
                                        "/flight_rank_" + std::to_string(rank) +
                                        ".json.");
  }
  const auto records = read_flight_records(hangs);
  ASSERT_EQ(records.size(), 3U);
  const std::string report = flight_report(records);
  expect_says(report, "'dp_shard/gather#1', ranks 0 1 2: not complete is #");
  expect_says(report, "    rank 0  waiting ");
  expect_says(report, "  > rank 1  missing; its last is all_gather #");
  expect_says(report, "Rank 1 is missing all_gather #");
  expect_says(report, "of unit 'second' on 'dp_shard/gather#1'.");

  (void)losing.end();
  const std::string partial = flight_report(read_flight_records(killed));
  expect_says(partial, "rank 1: no record: it was killed or stopped");
  expect_says(partial, "Rank 1 left no record; all_gather #");
}

}  // namespace
}  // namespace tessera::test
