// A peer that has gone must not end this process by a signal.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>

#include "tessera/comm/world.h"

namespace tessera {
namespace {

TEST(BrokenPipe, SignalIsIgnoredOnceThereIsACommunicator) {
  signal(SIGPIPE, SIG_DFL);
  run_ranks(2, [](const World& world) {
    (void)world.make_communicator("pair", {0, 1});
  });
  struct sigaction now {};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

std::atomic<int> caught = 0;

TEST(BrokenPipe, HandlerOfTheProgramStays) {
  signal(SIGPIPE, [](int) { ++caught; });
  run_ranks(2, [](const World& world) {
    (void)world.make_communicator("pair", {0, 1});
  });
  raise(SIGPIPE);
  EXPECT_EQ(caught, 1);
  signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace tessera
