#include "tessera/comm/peer_rounds.h"

#include <gtest/gtest.h>

#include <random>

#include "tessera/base/error.h"

namespace tessera {
namespace {

TEST(PeerRounds, PutPartsBesideEachOtherWhileTheyFit) {
  const std::vector<int64_t> parts = {10, 0, 300, 256, 5};
  const auto rounds = plan_peer_rounds(parts, 1024);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0], (std::vector<PeerPiece>{
                           {0, 0, 10, 0}, {2, 0, 300, 256}, {3, 0, 256, 768}}));
  EXPECT_EQ(rounds[1], (std::vector<PeerPiece>{{4, 0, 5, 0}}));
}

TEST(PeerRounds, AreNoneWithoutBytes) {
  EXPECT_TRUE(plan_peer_rounds({}, 256).empty());
  const std::vector<int64_t> parts = {0, 0};
  EXPECT_TRUE(plan_peer_rounds(parts, 256).empty());
}

TEST(PeerRounds, RefuseAWindowThatIsNoMultipleOfTheAlignment) {
  const std::vector<int64_t> parts = {1};
  for (const int64_t capacity : {0, -256, 100, 300}) {
    EXPECT_THROW((void)plan_peer_rounds(parts, capacity), InvalidArgument);
  }
}

// Every byte once and in order; pieces within the window, aligned, apart.
void expect_exact(const std::vector<int64_t>& parts, int64_t capacity) {
  std::vector<int64_t> sent(parts.size(), 0);
  for (const auto& round : plan_peer_rounds(parts, capacity)) {
    ASSERT_FALSE(round.empty());
    int64_t used = 0;
    for (const PeerPiece& piece : round) {
      ASSERT_GT(piece.bytes, 0);
      ASSERT_EQ(piece.offset, sent[piece.part]);
      ASSERT_EQ(piece.offset % kPeerAlignment, 0);
      ASSERT_EQ(piece.place % kPeerAlignment, 0);
      ASSERT_GE(piece.place, used);
      used = piece.place + piece.bytes;
      ASSERT_LE(used, capacity);
      sent[piece.part] += piece.bytes;
    }
  }
  EXPECT_EQ(sent, parts);
}

TEST(PeerRounds, BringEveryByteOnceAndInOrder) {
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int64_t> parts(random() % 6);
    for (int64_t& bytes : parts) bytes = random() % 3000;
    const int64_t capacity = kPeerAlignment * (1 + random() % 6);
    SCOPED_TRACE(i);
    expect_exact(parts, capacity);
  }
}

}  // namespace
}  // namespace tessera
