// Every way in which one rank can fail ends the job on all ranks, within the
// time-out and a little more, with the rank named.
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/watchdog.h"
#include "tessera/train/failure.h"
#include "tests/faults/job.h"

namespace tessera::test {
namespace {

using train::ExitCode;

constexpr int kSize = 3;
constexpr int kPeerFailed = static_cast<int>(ExitCode::peer_failed);
constexpr double kWithin = kTimeout.count() + 5;
constexpr double kBusy = 10;  // more, for what is due, on a busy machine

/// What is expected of a job.
struct Case {
  Fault fault;
  int code;          // of the rank with the fault
  std::string said;  // by each of the others
  int others = kPeerFailed;
};

void expect_said(const Ended& rank, const std::string& part) {
  EXPECT_NE(rank.output.find(part), std::string::npos)
      << "'" << part << "' is not in:\n"
      << rank.output;
}

void check(const Case& expected, const std::vector<Ended>& ranks) {
  for (int rank = 0; rank < kSize; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank) + ":\n" + ranks[rank].output);
    const bool at_fault = rank == expected.fault.rank;
    EXPECT_EQ(ranks[rank].code, at_fault ? expected.code : expected.others);
    EXPECT_LT(ranks[rank].seconds, kWithin + kBusy);
    if (!at_fault) expect_said(ranks[rank], expected.said);
  }
}

/// Runs the jobs beside each other.
void run(const std::vector<Case>& cases) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (const Case& each : cases) {
    jobs.push_back(std::make_unique<Job>(kSize, each.fault));
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("fault: " + cases[i].fault.kind + " of rank " +
                 std::to_string(cases[i].fault.rank));
    check(cases[i], jobs[i]->end());
  }
}

TEST(Faults, ARankThatIsKilledIsNamed) {
  run({{{"kill", 1}, -SIGKILL, "Out of step: rank 1."},
       {{"kill", 0}, -SIGKILL, "rank 0 of the group is gone"}});
}

TEST(Faults, ARankThatIsStoppedIsNamed) {
  run({{{"stop", 1}, -SIGKILL, "Out of step: rank 1."},
       {{"stop", 0}, -SIGKILL, "rank 0"}});
}

TEST(Faults, ARankThatIsSlowIsWaitedForAndOneThatHangsIsEnded) {
  Job slow(kSize, {"slow", 1});
  run({{{"hang", 1}, Watchdog::kExitCode, "Out of step: rank 1."},
       {{"hang", 0}, Watchdog::kExitCode, "Out of step: rank 0."}});
  for (const Ended& rank : slow.end()) {
    EXPECT_EQ(rank.code, 0) << rank.output;
    expect_said(rank, "trained");
  }
}

TEST(Faults, AnErrorOfOneRankIsToldByAll) {
  const int failed = static_cast<int>(ExitCode::failed);
  run({{{"forward", 1}, failed, "rank 1: made to fail in forward"},
       {{"backward", 1}, failed, "rank 1: made to fail in backward"}});
  run({{{"hook", 1}, failed, "rank 1: made to fail in a hook"},
       {{"optimizer", 0}, failed, "rank 0: made to fail in optimizer"}});
}

TEST(Faults, ARankOutOfMemoryIsToldByAll) {
  const int out_of_memory = static_cast<int>(ExitCode::out_of_memory);
  run({{{"memory", 1}, out_of_memory, "rank 1: "},
       {{"bad_alloc", 1}, out_of_memory, "rank 1: std::bad_alloc"}});
}

// fully_shard refuses it on all ranks alike.
TEST(Faults, ADifferentModelIsNamed) {
  const int failed = static_cast<int>(ExitCode::failed);
  run({{{"width", 1}, failed, "[9, 8] float", failed},
       {{"name", 1}, kPeerFailed, "rank 1"},
       {{"depth", 1}, failed, "(nothing)' on rank 0", failed}});
}

TEST(Faults, ADifferentOrderOrBranchIsNamed) {
  run({{{"order", 1}, kPeerFailed, "Out of step: rank 1."},
       {{"branch", 1}, kPeerFailed, "Out of step: rank 1."}});
}

TEST(Faults, ADifferentNumberOfBatchesIsNamed) {
  run({{{"fewer", 1}, kPeerFailed, "Out of step: rank 1."},
       {{"more", 1}, kPeerFailed, "Out of step: rank 1."}});
}

}  // namespace
}  // namespace tessera::test
