#include "tessera/comm/byte_overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tessera {
namespace {

using Ranges = std::vector<ByteRange>;
using Overlaps = std::vector<ByteOverlap>;

TEST(ByteOverlap, CutsPiecesAtTheEndsOfTheRange) {
  const Ranges pieces = {{0, 10}, {10, 5}, {20, 10}};
  EXPECT_EQ(overlaps({4, 20}, pieces),
            (Overlaps{{0, 4, 0, 6}, {1, 0, 6, 5}, {2, 0, 16, 4}}));
  EXPECT_EQ(gaps({4, 20}, pieces), (Ranges{{11, 5}}));
}

TEST(ByteOverlap, IsNothingWhereOnlyEndsMeet) {
  const Ranges pieces = {{0, 4}, {8, 0}, {12, 4}};
  EXPECT_TRUE(overlaps({4, 8}, pieces).empty());
  EXPECT_EQ(gaps({4, 8}, pieces), (Ranges{{0, 8}}));
  EXPECT_TRUE(gaps({4, 0}, pieces).empty());
}

// Every byte of a range is in one overlap or in one gap, and comes from its
// place in its piece.
TEST(ByteOverlap, AccountsForEveryByteOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Ranges pieces;
    std::string whole;  // by byte: the piece, or a dot
    for (int i = 0; i < 5; ++i) {
      whole.append(random() % 4, '.');
      const auto bytes = static_cast<int64_t>(random() % 6);
      pieces.push_back({static_cast<int64_t>(whole.size()), bytes});
      whole.append(bytes, static_cast<char>('a' + i));
    }
    whole.append(random() % 4, '.');
    const auto size = static_cast<int64_t>(whole.size());
    const int64_t begin = static_cast<int64_t>(random()) % (size + 1);
    const int64_t bytes = static_cast<int64_t>(random()) % (size - begin + 1);
    std::string rebuilt(bytes, '?');
    for (const ByteOverlap& overlap : overlaps({begin, bytes}, pieces)) {
      EXPECT_EQ(begin + overlap.in_range,
                pieces[overlap.piece].begin + overlap.in_piece);
      for (int64_t i = 0; i < overlap.bytes; ++i) {
        char& byte = rebuilt[overlap.in_range + i];
        EXPECT_EQ(byte, '?');
        byte = static_cast<char>('a' + overlap.piece);
      }
    }
    for (const ByteRange& gap : gaps({begin, bytes}, pieces)) {
      EXPECT_GT(gap.bytes, 0);
      for (int64_t i = gap.begin; i < gap.end(); ++i) {
        EXPECT_EQ(rebuilt[i], '?');
        rebuilt[i] = '.';
      }
    }
    EXPECT_EQ(rebuilt, whole.substr(begin, bytes));
  }
}

}  // namespace
}  // namespace tessera
