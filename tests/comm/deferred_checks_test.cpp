// Checks that wait for the ranks to meet.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

template <class Body>
void in_worlds(Body body) {
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](const World& world) {
      std::vector<int> all(world.size());
      std::iota(all.begin(), all.end(), 0);
      body(*world.make_communicator("all", all));
    });
  }
}

DeferredCheck note(std::vector<int>& ran, int number, const bool& ready) {
  return {.is_ready = [&ready] { return ready; },
          .run = [&ran, number] { ran.push_back(number); }};
}

TEST(DeferredChecks, RunBeforeTheRanksMeet) {
  in_worlds([](Communicator& comm) {
    std::vector<int> ran;
    const bool never = false;
    comm.check_later(note(ran, 1, never));
    comm.check_later(note(ran, 2, never));
    comm.all_reduce(torch::ones({2}), ReduceOp::sum, {}).wait();
    EXPECT_TRUE(ran.empty());
    comm.barrier({});
    EXPECT_EQ(ran, (std::vector{1, 2}));
    comm.check_later(note(ran, 3, never));
    (void)comm.exchange("", {});
    EXPECT_EQ(ran, (std::vector{1, 2, 3}));
  });
}

TEST(DeferredChecks, RunInOrderWhenTheyAreReady) {
  DeferredChecks checks;
  std::vector<int> ran;
  bool first = false;
  const bool second = true;
  checks.add(note(ran, 1, first));
  checks.add(note(ran, 2, second));
  checks.run_due();
  EXPECT_TRUE(ran.empty());
  first = true;
  checks.run_due();
  EXPECT_EQ(ran, (std::vector{1, 2}));
}

TEST(DeferredChecks, AreWaitedForWhenTooManyAreOpen) {
  DeferredChecks checks;
  std::vector<int> ran;
  const bool never = false;
  constexpr auto kMost = static_cast<int>(DeferredChecks::kMostOpen);
  for (int i = 0; i < kMost + 2; ++i) checks.add(note(ran, i, never));
  checks.run_due();
  EXPECT_EQ(ran, (std::vector{0, 1}));
}

TEST(DeferredChecks, AnErrorIsThatOfTheMeeting) {
  in_worlds([](Communicator& comm) {
    std::vector<int> ran;
    const bool never = false;
    comm.check_later({.is_ready = [] { return false; },
                      .run = [] { throw CommError("unlike"); }});
    comm.check_later(note(ran, 1, never));
    EXPECT_THROW((void)comm.exchange("", {}), CommError);
    EXPECT_TRUE(ran.empty());
    (void)comm.exchange("", {});
    EXPECT_EQ(ran, std::vector{1});
  });
}

TEST(WorldFinish, ThrowsWhatACheckFindsAndEndsTheOthers) {
  for (const int ranks : {1, 3}) {
    std::atomic<int> num_ended = 0;
    try {
      run_ranks(ranks, [&](const World& world) {
        std::vector<int> all(world.size());
        std::iota(all.begin(), all.end(), 0);
        const auto comm = world.make_communicator("all", all);
        comm->barrier({});  // a rank may still be connecting
        if (world.rank() == 0) {
          comm->check_later({.is_ready = [] { return false; },
                             .run = [] { throw CommError("unlike"); }});
        }
        try {
          world.finish();
        } catch (const CommError& error) {
          ++num_ended;
          EXPECT_NE(std::string(error.what()).find("unlike"), std::string::npos)
              << error.what();
          throw;
        }
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const CommError&) {
    }
    EXPECT_EQ(num_ended, ranks);
  }
}

TEST(WorldFinish, WaitsForAllAndIsTheLastCall) {
  for (const int ranks : {1, 3}) {
    std::atomic<int> num_come = 0;
    run_ranks(ranks, [&](const World& world) {
      std::vector<int> all(world.size());
      std::iota(all.begin(), all.end(), 0);
      const auto comm = world.make_communicator("all", all);
      if (world.rank() == 0) std::this_thread::sleep_for(300ms);
      ++num_come;
      world.finish();
      EXPECT_EQ(num_come, ranks);
      world.finish();
      EXPECT_THROW(world.barrier(), InvalidState);
      if (ranks > 1) {
        const auto tensor = torch::ones({2});
        EXPECT_THROW((void)comm->all_reduce(tensor, ReduceOp::sum, {}),
                     InvalidState);
      }
    });
  }
}

}  // namespace
}  // namespace tessera
