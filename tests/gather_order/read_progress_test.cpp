#include "tessera/shard/read_progress.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera {
namespace {

/// Which reads of a pass reach the share.
std::string reaching(ReadProgress& reads, int count, size_t numerator,
                     size_t denominator) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    reads.note();
    text += reads.reaches(numerator, denominator) ? 'x' : '.';
  }
  reads.end_pass();
  return text;
}

TEST(ReadProgress, OneReadOfAPassReachesAShareOnceItIsKnown) {
  ReadProgress reads;
  EXPECT_EQ(reaching(reads, 5, 4, 5), ".....") << "nothing is known";
  EXPECT_EQ(reaching(reads, 5, 4, 5), "....x");
  EXPECT_EQ(reaching(reads, 5, 1, 4), ".x...");
  EXPECT_EQ(reaching(reads, 8, 1, 4), ".x......") << "the one before had 5";
  EXPECT_EQ(reaching(reads, 8, 1, 4), "..x.....");
  EXPECT_EQ(reaching(reads, 3, 4, 5), "...") << "fewer than before";
  EXPECT_EQ(reaching(reads, 1, 1, 4), "x");
  EXPECT_EQ(reaching(reads, 1, 4, 5), "x") << "the only one";
}

TEST(ReadProgress, APassThatFailedTeachesNothing) {
  ReadProgress reads;
  (void)reaching(reads, 10, 1, 4);
  reads.note();
  reads.drop_pass();
  EXPECT_EQ(reaching(reads, 10, 1, 2), ".....x....");
  reads.end_pass();  // without a read
  EXPECT_EQ(reaching(reads, 10, 1, 2), ".....x....");
}

}  // namespace
}  // namespace tessera
