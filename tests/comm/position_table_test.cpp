#include "tessera/comm/position_table.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

using Ranks = std::vector<int>;

RankPosition at(int rank, uint64_t sequence, const std::string& unit,
                bool finished = false) {
  RankPosition position;
  position.rank = rank;
  position.answered = true;
  position.last.sequence = sequence;
  position.last.kind = "all_gather";
  position.last.unit = unit;
  position.last.finished = finished;
  position.last.waited = true;
  return position;
}

RankPosition silent(int rank) {
  RankPosition position;
  position.rank = rank;
  return position;
}

RankPosition before_all(int rank) {
  RankPosition position;
  position.rank = rank;
  position.answered = true;
  return position;
}

Ranks odd(const std::vector<RankPosition>& positions) {
  return odd_ranks(positions);
}

TEST(OddRanks, AreTheMinority) {
  EXPECT_EQ(odd({at(0, 5, "a"), at(1, 4, "a"), at(2, 5, "a")}), Ranks{1});
  EXPECT_EQ(odd({at(0, 5, "b"), at(1, 5, "a"), at(2, 5, "a")}), Ranks{0});
}

TEST(OddRanks, AreThoseThatDoNotAnswer) {
  EXPECT_EQ(odd({at(0, 5, "a"), silent(1)}), Ranks{1});
  EXPECT_EQ(odd({silent(0), at(1, 4, "a"), at(2, 5, "a"), silent(3)}),
            (Ranks{0, 3}));
}

TEST(OddRanks, OfTwoIsTheOneThatWaitsForNobody) {
  EXPECT_EQ(odd({at(0, 5, "a", true), at(1, 5, "a")}), Ranks{0});
  EXPECT_EQ(odd({at(0, 5, "a"), before_all(1)}), Ranks{1});
}

TEST(OddRanks, OfTwoIsTheOneThatIssuedButDoesNotWait) {
  RankPosition busy = at(1, 6, "b");
  busy.last.waited = false;
  EXPECT_EQ(odd({at(0, 5, "a"), busy}), Ranks{1});
}

TEST(OddRanks, OfTwoIsTheOneThatSaysGoodbye) {
  RankPosition leaver = at(1, 5, "");
  leaver.last.kind = kGoodbye;
  EXPECT_EQ(odd({at(0, 5, "a"), leaver}), Ranks{1});
}

TEST(OddRanks, OfTwoThatWaitIsTheOneBehind) {
  EXPECT_EQ(odd({at(0, 5, "a"), at(1, 4, "b")}), Ranks{1});
}

TEST(OddRanks, AreAllWhenTheyDisagreeAtOneNumber) {
  EXPECT_EQ(odd({at(0, 5, "a"), at(1, 5, "b")}), (Ranks{0, 1}));
}

TEST(OddRanks, AreNoneWhenAllStandAtOnePlace) {
  EXPECT_EQ(odd({at(0, 5, "a"), at(1, 5, "a")}), Ranks{});
}

TEST(Contradict, MeansUnlikeCallsAtOnePointOfOneCommunicator) {
  RankPosition a = at(0, 5, "a");
  RankPosition b = at(1, 7, "a");
  EXPECT_FALSE(contradict(a, b));
  b.last.unit = "b";
  EXPECT_TRUE(contradict(a, b));
  b.last.index = 3;
  EXPECT_FALSE(contradict(a, b));
  b.last.index = a.last.index;
  b.last.communicator = "another";
  EXPECT_FALSE(contradict(a, b));
  b.last.communicator = a.last.communicator;
  b.last.waited = false;
  EXPECT_FALSE(contradict(a, b));
  b = at(1, 5, "a");
  b.last.numel = 4;
  EXPECT_TRUE(contradict(a, b));
  b = at(1, 5, "a");
  b.last.reduction = "max";
  EXPECT_TRUE(contradict(a, b));
  b = at(1, 5, "a");
  b.last.root = 1;
  EXPECT_TRUE(contradict(a, b));
}

TEST(PositionRecord, SurvivesTheWayThroughText) {
  RankPosition position = at(3, 1234567890123, "layers.1, odd 'name'\n");
  position.age_ms = 2500;
  position.last.communicator = "dp/gather";
  position.last.index = 11;
  position.last.phase = "backward";
  position.last.op = "aten::mm";
  position.last.numel = 77;
  position.last.dtype = "BFloat16";
  position.last.num_bytes = 154;
  position.last.finished = true;
  position.last.reduction = "sum";
  position.last.root = 2;
  const RankPosition back = from_record(to_record(position));
  EXPECT_EQ(to_record(back), to_record(position));
  EXPECT_EQ(back.rank, 3);
  EXPECT_TRUE(back.answered);
  EXPECT_EQ(back.age_ms, 2500);
  EXPECT_EQ(back.last.unit, "layers.1, odd 'name'\n");
  EXPECT_EQ(back.last.sequence, 1234567890123u);
  EXPECT_EQ(back.last.num_bytes, 154);
  EXPECT_EQ(back.last.index, 11);
  EXPECT_TRUE(back.last.waited);
  EXPECT_TRUE(back.last.finished);
  EXPECT_EQ(back.last.reduction, "sum");
  EXPECT_EQ(back.last.root, 2);
}

TEST(PositionRecord, RefusesBrokenLines) {
  EXPECT_THROW((void)from_record(""), InvalidArgument);
  EXPECT_THROW((void)from_record("1\x1f"
                                 "2"),
               InvalidArgument);
  std::string record = to_record(at(1, 2, "a"));
  record[0] = 'x';
  EXPECT_THROW((void)from_record(record), InvalidArgument);
}

TEST(PositionTable, MarksTheOddRankAndAlignsTheRest) {
  const std::vector<RankPosition> positions = {at(0, 12, "layers.1"),
                                               at(1, 9, "a", true), silent(2)};
  EXPECT_EQ(
      position_table(positions),
      "    rank  seq  kind        unit      phase  operator  bytes  state\n"
      "    0     12   all_gather  layers.1  -      -         0      waiting "
      "0.0 s\n"
      "    1     9    all_gather  a         -      -         0      finished "
      "0.0 s ago\n"
      "  > 2     -    -           -         -      -         -      no answer: "
      "its process has ended, or is stopped\n"
      "Out of step: rank 2.");
}

}  // namespace
}  // namespace tessera
