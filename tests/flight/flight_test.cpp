// Flight records as files, and what is told from those of several ranks.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/flight_record.h"
#include "tessera/comm/flight_report.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

const char kGather[] = "dp/gather";

/// A rank's calls on one communicator, all complete but the last.
class Rank {
 public:
  explicit Rank(int rank, std::vector<int> group = {0, 1, 2}) {
    record_.rank = rank;
    record_.world_size = 3;
    record_.written = 1000;
    record_.cause = "a time-out\nwith a table";
    record_.groups = {{kGather, std::move(group)}};
  }

  Rank& call(const std::string& unit, const std::string& state = "completed",
             int64_t numel = 8, int64_t index = 0) {
    FlightCall call;
    call.entry.sequence = record_.calls.size() + 1;
    call.entry.communicator = kGather;
    call.entry.index =
        index > 0 ? index : static_cast<int64_t>(record_.calls.size()) + 1;
    call.entry.kind = "all_gather";
    call.entry.unit = unit;
    call.entry.phase = "forward";
    call.entry.op = "aten::mm";
    call.entry.numel = numel;
    call.entry.dtype = "Float";
    call.entry.num_bytes = 4 * numel;
    call.entry.finished = state == "completed";
    call.entry.waited = state != "issued";
    call.called = 990;
    call.waited = call.entry.waited ? 997 : 0;
    call.ended = call.entry.finished ? 998.5 : 0;
    record_.calls.push_back(call);
    return *this;
  }

  operator FlightRecord() const { return record_; }  // NOLINT

 private:
  FlightRecord record_;
};

std::string report(const std::vector<FlightRecord>& records) {
  return flight_report(records);
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos)
      << "'" << part << "' is not in:\n"
      << text;
}

std::string error_of(auto&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(FlightReport, NamesTheRankThatIsMissingACollective) {
  const std::string text =
      report({Rank(0).call("a").call("b", "waiting"), Rank(1).call("a"),
              Rank(2).call("a").call("b", "waiting")});
  expect_says(text,
              "rank 0: 2 collectives, the last ended 1.5 s before; a time-out\n"
              "rank 1: 1 coll");
  expect_says(text,
              "'dp/gather', ranks 0 1 2: not complete is #2, all_gather #2, "
              "unit 'b', forward, aten::mm, 8 Float\n"
              "    rank 0  waiting 3.0 s\n"
              "  > rank 1  missing; its last is all_gather #1, unit 'a', "
              "forward, aten::mm, 8 Float, completed 1.5 s before, in 8.5 s\n"
              "    rank 2  waiting 3.0 s\n");
  expect_says(text,
              "\nRank 1 is missing all_gather #2 of unit 'b' on "
              "'dp/gather'.\n");
}

TEST(FlightReport, ShowsUnlikeCallsBesideEachOther) {
  const std::string text =
      report({Rank(0).call("a").call("b", "waiting"),
              Rank(1).call("a").call("c", "waiting", 16), Rank(2).call("a")});
  expect_says(text, "unlike calls at #2\n  > rank 0  all_gather #2, unit 'b'");
  expect_says(text,
              "  > rank 1  all_gather #2, unit 'c', forward, aten::mm, "
              "16 Float, waiting 3.0 s\n");
  expect_says(text, "  > rank 2  missing");
  expect_says(text, "Ranks 0, 1, 2 mean unlike calls by #2 on 'dp/gather'.");
}

TEST(FlightReport, TellsOperationsAndRootsApart) {
  const auto reduces = [](int rank, const std::string& reduction, int root) {
    FlightRecord record = Rank(rank).call("a", "waiting");
    record.calls[0].entry.reduction = reduction;
    record.calls[0].entry.root = root;
    return record;
  };
  const std::string text = report(
      {reduces(0, "sum", 1), reduces(1, "max", 1), reduces(2, "sum", 1)});
  expect_says(text,
              "unlike calls at #1\n  > rank 0  all_gather #1 by sum with "
              "root 1, unit 'a'");
  expect_says(report({reduces(0, "", 0), reduces(1, "", 1), reduces(2, "", 0)}),
              "  > rank 1  all_gather #1 with root 1, unit 'a'");
}

TEST(FlightReport, SaysForHowLongARankHasEndedNoCollective) {
  const std::string text =
      report({Rank(0).call("a"), Rank(1).call("a", "waiting"),
              Rank(2).call("a", "issued")});
  expect_says(text, "rank 0: 1 collectives, the last ended 1.5 s before; ");
  expect_says(text, "rank 1: 1 collectives, none of them ended; ");
  expect_says(text, "    rank 0  completed 1.5 s before, in 8.5 s\n");
}

TEST(FlightReport, SaysWhichRankLeftNoRecord) {
  const std::string text =
      report({Rank(0).call("a", "waiting"), Rank(2).call("a", "issued")});
  expect_says(text, "rank 1: no record: it was killed or stopped");
  expect_says(text, "  > rank 1  no record\n    rank 2  issued 10.0 s before");
  expect_says(text,
              "Rank 1 left no record; all_gather #1 of unit 'a' on 'dp/gather' "
              "may be missing there.");
}

TEST(FlightReport, TakesNothingForMissingThatAnOldRecordNoLongerHolds) {
  const std::string text = report({Rank(0).call("c", "completed", 8, 7),
                                   Rank(1)
                                       .call("a", "completed", 8, 5)
                                       .call("b", "completed", 8, 6)
                                       .call("c", "completed", 8, 7),
                                   Rank(2).call("c", "completed", 8, 7)});
  expect_says(text, "All recorded collectives completed.");
}

TEST(FlightReport, KeepsGroupsOfOneNameOnOtherRanksApart) {
  const std::string text =
      report({Rank(0, {0, 1}).call("a"), Rank(1, {0, 1}).call("a"),
              Rank(2, {2}).call("z", "waiting")});
  expect_says(text, "'dp/gather', ranks 2: not complete is #1");
  EXPECT_EQ(text.find("ranks 0 1"), std::string::npos) << text;
}

TEST(FlightRecord, IsTheSameAfterItsFile) {
  const testing::TemporaryFolder folder;
  FlightRecord record = Rank(1).call("a").call("b", "waiting");
  record.calls.back().entry.unit = "b\xff";  // no UTF-8
  record.calls.back().entry.reduction = "max";
  record.calls.back().entry.root = 2;
  const auto path = write_flight_record(folder / "new", record);
  EXPECT_EQ(path.filename(), "flight_rank_1.json");
  const auto read = read_flight_records(folder / "new");
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].rank, 1);
  EXPECT_EQ(read[0].cause, record.cause);
  EXPECT_EQ(read[0].groups, record.groups);
  ASSERT_EQ(read[0].calls.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    const FlightCall& got = read[0].calls[i];
    const FlightCall& want = record.calls[i];
    EXPECT_EQ(got.entry.sequence, want.entry.sequence);
    EXPECT_EQ(got.entry.index, want.entry.index);
    EXPECT_EQ(got.entry.kind, want.entry.kind);
    EXPECT_EQ(got.entry.op, want.entry.op);
    EXPECT_EQ(got.entry.numel, want.entry.numel);
    EXPECT_EQ(got.entry.num_bytes, want.entry.num_bytes);
    EXPECT_EQ(got.entry.finished, want.entry.finished);
    EXPECT_EQ(got.entry.waited, want.entry.waited);
    EXPECT_EQ(got.entry.reduction, want.entry.reduction);
    EXPECT_EQ(got.entry.root, want.entry.root);
    EXPECT_EQ(got.called, want.called);
    EXPECT_EQ(got.waited, want.waited);
    EXPECT_EQ(got.ended, want.ended);
  }
}

TEST(FlightRecord, HasTheTimesOfALog) {
  const auto now = std::chrono::steady_clock::now();
  CollectiveEntry issued;
  issued.called = now - 30s;
  issued.started = issued.called;
  CollectiveEntry waited = issued;
  waited.waited = true;
  waited.started = now - 20s;
  CollectiveEntry ended = waited;
  ended.finished = true;
  ended.ended = now - 10s;
  const FlightRecord record =
      make_flight_record(std::vector{issued, waited, ended});
  ASSERT_EQ(record.calls.size(), 3U);
  const std::vector<double> ages = {30, 20, 10};
  for (size_t i = 0; i < 3; ++i) {
    const FlightCall& call = record.calls[i];
    EXPECT_NEAR(record.written - call.called, 30, 1) << i;
    EXPECT_NEAR(record.written - call.since(), ages[i], 1) << i;
    EXPECT_EQ(call.waited > 0, i > 0);
    EXPECT_EQ(call.ended > 0, i > 1);
  }
}

TEST(FlightRecord, ABrokenOrForeignFileIsNamed) {
  const testing::TemporaryFolder folder;
  expect_says(error_of([&] { (void)read_flight_records(folder.path()); }),
              folder.path() + "' holds no file flight_rank_R.json");
  expect_says(error_of([&] { (void)read_flight_records("/no/such"); }),
              "No such file");
  const std::string whole = to_json(Rank(0).call("a"));
  for (const std::string& text :
       {std::string(), whole.substr(0, whole.size() / 2), std::string("[]"),
        std::string(R"({"version": 1})")}) {
    std::ofstream(folder / "flight_rank_0.json") << text;
    expect_says(error_of([&] { (void)read_flight_records(folder.path()); }),
                "flight_rank_0.json: flight record: ");
  }
}

TEST(FlightRecord, AFolderThatCannotBeWrittenIsAnError) {
  const testing::TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(write_flight_record(folder / "file", Rank(0).call("a")),
               std::system_error);
}

}  // namespace
}  // namespace tessera
