// Signals sent to the launcher, and processes that must not outlive it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "tests/launch/running_program.h"

namespace tessera::launch {
namespace {

// Each rank says that it is ready, then waits for ever.
std::string wait_with(const std::string& traps) {
  return traps + "; echo ready; while :; do sleep 0.01; done";
}

std::vector<pid_t> processes_below(const RunningProgram& program) {
  return descendants(program.process());
}

void expect_all_end(const std::vector<pid_t>& processes) {
  for (const pid_t process : processes) {
    EXPECT_TRUE(eventually([&] { return !alive(process); }))
        << process << " still runs";
  }
}

TEST(RunSignals, PassesSigtermOnAndReturnsZeroWhenRanksEndCleanly) {
  RunningProgram program(
      run_script(3, wait_with("trap 'echo saved; exit 0' TERM")));
  (void)program.wait_for_lines(3);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.output(), "ready\nready\nready\nsaved\nsaved\nsaved\n");
}

TEST(RunSignals, ReturnsTheCodeThatARankChoosesAfterASignal) {
  RunningProgram program(
      run_script(2, wait_with("trap 'exit $((RANK * 6))' TERM")));
  (void)program.wait_for_lines(2);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 6);
  EXPECT_NE(program.error().find("after SIGTERM, rank 1"), std::string::npos)
      << program.error();
}

class RunSignalsDeath : public testing::TestWithParam<int> {};

TEST_P(RunSignalsDeath, Is128PlusTheSignalWhenRanksDieOfIt) {
  RunningProgram program(run_script(2, wait_with(":")));
  (void)program.wait_for_lines(2);
  const auto processes = processes_below(program);
  program.send(GetParam());
  EXPECT_EQ(program.wait(), 128 + GetParam());
  expect_all_end(processes);
}

INSTANTIATE_TEST_SUITE_P(Signals, RunSignalsDeath,
                         testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST(RunSignals, PassesUserSignalsOnAndRunsOn) {
  RunningProgram program(run_script(
      2, wait_with("trap 'echo one' USR1; trap 'echo two; exit 0' USR2")));
  (void)program.wait_for_lines(2);
  program.send(SIGUSR1);
  EXPECT_EQ(program.wait_for_lines(4), "ready\nready\none\none\n");
  program.send(SIGUSR2);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.error().find("SIGUSR"), std::string::npos)
      << program.error();  // nobody was asked to end
}

TEST(RunSignals, KillsAtOnceOnASecondInterrupt) {
  RunningProgram program(
      run_script(2, wait_with("trap 'echo no' INT"), {"--kill-after", "1000"}));
  (void)program.wait_for_lines(2);
  const auto processes = processes_below(program);
  program.send(SIGINT);
  (void)program.wait_for_lines(4);
  program.send(SIGINT);
  EXPECT_EQ(program.wait(), 130);
  expect_all_end(processes);
}

TEST(RunSignals, KillsARankThatIgnoresTheSignalPassedOn) {
  RunningProgram program(
      run_script(2, wait_with("trap '' TERM"), {"--kill-after", "0.3"}));
  (void)program.wait_for_lines(2);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 143);
}

TEST(RunSignals, LeavesASignalIgnoredThatWasIgnoredAtTheStart) {
  RunningProgram program(run_script(2, wait_with("trap 'exit 0' USR1")),
                         {.in_child = [] { ::signal(SIGHUP, SIG_IGN); }});
  (void)program.wait_for_lines(2);
  program.send(SIGHUP);
  program.send(SIGUSR1);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.error().find("SIGHUP"), std::string::npos)
      << program.error();
}

TEST(RunSignals, StopsAndContinuesTheRanksWithTheLauncher) {
  RunningProgram program(run_script(2, "echo $$; exec sleep 1000"));
  const auto ranks = numbers(program.wait_for_lines(2));
  const auto stopped = [](pid_t process) { return state_of(process) == 'T'; };
  program.send(SIGTSTP);
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(ranks, stopped) && stopped(program.process());
  }));
  program.send(SIGCONT);
  EXPECT_TRUE(eventually([&] { return std::ranges::none_of(ranks, stopped); }));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 143);
}

// The ranks are deaf to SIGTERM, and so is what they have started.
TEST(RunOrphans, AreNoneAfterTheLauncherIsKilled) {
  RunningProgram program(
      run_script(3, "trap '' TERM HUP; sleep 1000 & echo ready; wait"));
  (void)program.wait_for_lines(3);
  ASSERT_TRUE(eventually([&] {
    return processes_below(program).size() == 7;  // 3 * (sh + sleep) + guard
  }));
  const auto processes = processes_below(program);
  for (const pid_t process : processes) EXPECT_TRUE(alive(process));
  program.send(SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  expect_all_end(processes);
}

// The launcher leads the session of a terminal, whose other end is closed.
TEST(RunOrphans, AreNoneAfterTheTerminalIsClosed) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_EQ(::grantpt(terminal) + ::unlockpt(terminal), 0);
  const std::string name = ::ptsname(terminal);
  RunningProgram program(run_script(2, "sleep 1000 & echo ready; wait"),
                         {.in_child = [&] {
                           ::setsid();
                           ::dup2(::open(name.c_str(), O_RDWR), 0);
                         }});
  (void)program.wait_for_lines(2);
  const auto processes = processes_below(program);
  EXPECT_GE(processes.size(), 3U);
  ::close(terminal);
  EXPECT_EQ(program.wait(), 128 + SIGHUP);
  expect_all_end(processes);
}

TEST(RunOrphans, AreNoneWhenTheGuardWasKilledBeforeTheLauncher) {
  RunningProgram program(run_script(2, "echo $$; exec sleep 1000"));
  const auto ranks = numbers(program.wait_for_lines(2));
  const auto processes = processes_below(program);
  ASSERT_EQ(processes.size(), 3U);
  for (const pid_t process : processes) {
    if (process != ranks[0] && process != ranks[1]) ::kill(process, SIGKILL);
  }
  program.send(SIGKILL);
  EXPECT_EQ(program.wait(), 137);
  expect_all_end(processes);
}

TEST(RunOrphans, AreNoneWhenARankEndsBeforeWhatItStarted) {
  RunningProgram program(run_script(2, "sleep 1000 & echo $!"));
  EXPECT_EQ(program.wait(), 0);
  const auto left = numbers(program.output());
  EXPECT_EQ(left.size(), 2U);
  for (const pid_t process : left) EXPECT_FALSE(alive(process));
  EXPECT_NE(program.error().find("has ended but left processes"),
            std::string::npos)
      << program.error();
}

TEST(RunOrphans, AreNoneWhenWhatARankLeftIgnoresSigterm) {
  RunningProgram program(run_script(1, "trap '' TERM; sleep 1000 & echo $!",
                                    {"--kill-after", "0.3"}));
  EXPECT_EQ(program.wait(), 0);
  EXPECT_FALSE(alive(numbers(program.output()).at(0)));
  EXPECT_NE(program.error().find("killing them"), std::string::npos)
      << program.error();
}

}  // namespace
}  // namespace tessera::launch
