// What the launcher says of the output of ranks.
#include "cli/launch/output_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

namespace tessera::launch {
namespace {

/// A rank has written and ended. What the relay then writes to our stderr.
std::string said_of_a_rank_that_ended(const char* log) {
  OutputRelay relay;
  {
    const FileDescriptor rank = relay.add_rank(
        0, Stream::output, FileDescriptor(::open(log, O_WRONLY | O_CLOEXEC)));
    EXPECT_EQ(::write(rank.get(), "two\n", 4), 4);
  }
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  relay.finish();
  while (relay.pending()) {
    auto polls = relay.polls();
    EXPECT_GT(::poll(polls.data(), polls.size(), /*timeout=*/20000), 0);
    relay.handle(polls);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "[rank 0] two\n");
  return ::testing::internal::GetCapturedStderr();
}

// Of all that it wrote nothing was read before.
TEST(OutputRelay, SaysThatALogIsNotWholeWhenTheRankHasEnded) {
  EXPECT_EQ(said_of_a_rank_that_ended("/dev/full"),
            "tessera run: cannot write the log of rank 0 any more (is the disk "
            "full?); its file stays as it is.\n");
  EXPECT_EQ(said_of_a_rank_that_ended("/dev/null"), "");
}

}  // namespace
}  // namespace tessera::launch
