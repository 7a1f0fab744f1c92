// What happens when a rank does not come, or fails.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::shared_ptr<Communicator> connect_all(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_communicator("dp_shard/gather", ranks);
}

void gather(Communicator& comm, std::string_view unit, int64_t numel = 8) {
  const GatherCall call{torch::empty({comm.size() * numel}),
                        torch::ones({numel})};
  comm.all_gather({&call, 1},
                  {.unit = unit, .phase = "forward", .op = "aten::mm"})
      .wait();
}

template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// The line of the table that starts with this rank.
std::string table_line(const std::string& message, int rank) {
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == ">") words >> word;
    if (word == std::to_string(rank)) return line;
  }
  return "";
}

TEST(Failures, TheTableNamesTheRankThatDoesNotComeAndItsUnit) {
  for (const int world_size : {2, 3, 4}) {
    const int absent = world_size - 1;
    std::mutex mutex;
    std::condition_variable ended;
    int num_failed = 0;
    const std::string message = message_of<CommError>([&] {
      run_ranks(
          world_size,
          [&](const World& world) {
            auto comm = connect_all(world);
            gather(*comm, "layers.0");
            if (world.rank() == absent) {
              std::unique_lock lock(mutex);  // away until the others gave up
              EXPECT_TRUE(ended.wait_for(
                  lock, 30s, [&] { return num_failed == world_size - 1; }));
              return;
            }
            try {
              gather(*comm, "layers.1");
            } catch (...) {
              const std::lock_guard lock(mutex);
              ++num_failed;
              ended.notify_all();
              throw;
            }
          },
          3s);
    });
    EXPECT_TRUE(contains(message, str("Out of step: rank ", absent, ".")))
        << message;
    const std::string odd = table_line(message, absent);
    EXPECT_TRUE(contains(odd, "layers.0")) << message;
    EXPECT_TRUE(contains(odd, "finished")) << message;
    EXPECT_EQ(odd.substr(0, 4), "  > ") << message;
    for (int rank = 0; rank < absent; ++rank) {
      const std::string line = table_line(message, rank);
      EXPECT_TRUE(contains(line, "layers.1")) << message;
      EXPECT_TRUE(contains(line, "all_gather")) << message;
      EXPECT_TRUE(contains(line, "aten::mm")) << message;
      EXPECT_TRUE(contains(line, "waiting")) << message;
      EXPECT_EQ(line.substr(0, 4), "    ") << message;
    }
  }
}

TEST(Failures, OneRanksErrorEndsTheOthersAndIsTheOneReported) {
  for (const int failing : {0, 1, 2}) {
    const auto start = Clock::now();
    const std::string message = message_of<InvalidArgument>([&] {
      run_ranks(3, [&](const World& world) {
        auto comm = connect_all(world);
        gather(*comm, "layers.0");
        require<InvalidArgument>(world.rank() != failing,
                                 [] { return "no such file: corpus.bin"; });
        gather(*comm, "layers.1");
      });
    });
    EXPECT_EQ(message, str("rank ", failing, ": no such file: corpus.bin"));
    EXPECT_LT(Clock::now() - start, 10s);  // the time-out is 60 s
  }
}

TEST(Failures, OneRanksErrorEndsTheOthersWhileTheyConnect) {
  const auto start = Clock::now();
  const auto run = [&] {
    run_ranks(3, [&](const World& world) {
      if (world.rank() == 2) throw Unsupported("no such layer");
      (void)connect_all(world);
    });
  };
  EXPECT_THROW(run(), Unsupported);
  EXPECT_LT(Clock::now() - start, 10s);  // the time-out is 60 s
}

TEST(Failures, ARankThatStillConnectsHearsWhichRankFailedAndWhy) {
  std::string heard;
  const auto run = [&] {
    run_ranks(2, [&](const World& world) {
      if (world.rank() == 1) throw InvalidState("the optimizer is not bound");
      try {
        (void)connect_all(world);
      } catch (const CommError& error) {
        heard = error.what();
        throw;
      }
    });
  };
  EXPECT_THROW(run(), InvalidState);
  EXPECT_TRUE(contains(heard, "rank 0: connect #1 on 'dp_shard/gather'"))
      << heard;
  EXPECT_TRUE(contains(heard, "Cause: rank 1: the optimizer is not bound"))
      << heard;
}

TEST(Failures, OneRanksErrorEndsABarrierAnExchangeAndAnAllReduce) {
  using Wait = std::function<void(const World&, Communicator&)>;
  const std::vector<Wait> waits = {
      [](const World& world, Communicator&) { world.barrier(); },
      [](const World& world, Communicator&) { (void)world.exchange("k", "v"); },
      [](const World&, Communicator& comm) { comm.barrier({}); },
      [](const World&, Communicator& comm) { (void)comm.exchange("v", {}); },
      [](const World&, Communicator& comm) {
        comm.all_reduce(torch::ones({100000}), ReduceOp::sum, {}).wait();
      }};
  for (const Wait& wait : waits) {
    const auto start = Clock::now();
    const auto run = [&] {
      run_ranks(3, [&](const World& world) {
        auto comm = connect_all(world);
        if (world.rank() == 1) throw std::out_of_range("row 7");
        wait(world, *comm);
      });
    };
    EXPECT_THROW(run(), std::out_of_range);
    EXPECT_LT(Clock::now() - start, 10s);
  }
}

TEST(Failures, TheErrorOfTheOthersSaysWhichRankFailedAndWhy) {
  std::string heard;
  std::promise<void> connected;  // rank 0: until then its call is "connect"
  const auto run = [&] {
    run_ranks(2, [&](const World& world) {
      auto comm = connect_all(world);
      if (world.rank() == 1) {
        ASSERT_EQ(connected.get_future().wait_for(30s),
                  std::future_status::ready);
        throw InvalidState("the optimizer is not bound");
      }
      connected.set_value();
      try {
        gather(*comm, "layers.1");
      } catch (const CommError& error) {
        heard = error.what();
        throw;
      }
    });
  };
  EXPECT_THROW(run(), InvalidState);
  EXPECT_TRUE(contains(heard,
                       "rank 0: all_gather #2 on 'dp_shard/gather', "
                       "unit 'layers.1', forward, aten::mm"))
      << heard;
  EXPECT_TRUE(contains(heard, "Cause: rank 1: the optimizer is not bound"))
      << heard;
}

TEST(Failures, ARankThatReturnsWhileAnotherWaitsForItIsNamed) {
  const auto start = Clock::now();
  const std::string message = message_of<CommError>([&] {
    run_ranks(2, [&](const World& world) {
      auto comm = connect_all(world);
      if (world.rank() == 1) return;
      gather(*comm, "layers.7");
    });
  });
  EXPECT_TRUE(contains(message, "rank 1: returned, while rank 0 waits for it"))
      << message;
  EXPECT_TRUE(contains(message, "layers.7")) << message;
  EXPECT_LT(Clock::now() - start, 20s);
}

TEST(Failures,
     UnlikeCollectivesNeverMixAndAreFoundBeforeTheTimeOut) {  // A48
  for (const int64_t numel_of_rank_1 : {8, 4}) {
    const auto start = Clock::now();
    const std::string message = message_of<CommError>([&] {
      run_ranks(2, [&](const World& world) {
        auto comm = connect_all(world);
        if (world.rank() == 0) {
          gather(*comm, "layers.0");
        } else {
          gather(*comm, numel_of_rank_1 == 8 ? "layers.1" : "layers.0",
                 numel_of_rank_1);
        }
      });
    });
    EXPECT_TRUE(contains(message, "Out of step: ranks 0, 1.")) << message;
    EXPECT_TRUE(contains(message, "rank 1 waits in all_gather of unit"))
        << message;
    EXPECT_TRUE(contains(message, "rank 0 waits in all_gather of unit"))
        << message;
    EXPECT_LT(Clock::now() - start, 20s);  // the time-out is 60 s
  }
}

TEST(Failures, AFailedWorldRefusesTheNextCollective) {
  const auto run = [&] {
    run_ranks(
        2,
        [&](const World& world) {
          auto comm = connect_all(world);
          if (world.rank() == 1) return;
          EXPECT_THROW(gather(*comm, "layers.0"), CommError);
          const std::string message =
              message_of<CommError>([&] { gather(*comm, "layers.1"); });
          EXPECT_TRUE(contains(message, "layers.1")) << message;
        },
        1s);
  };
  EXPECT_THROW(run(), CommError);
}

}  // namespace
}  // namespace tessera
