// Membership, errors before and after sending, and stores.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"
#include "tests/distributed/group_checks.h"

namespace tessera::distributed {
namespace {

using namespace std::chrono_literals;

TEST(Groups, HoldTheirRanksInAscendingOrder) {
  run_ranks(
      3,
      [](const World& world) {
        const auto group =
            new_group(world, {2, 0}, {.description = "ends of the line"});
        EXPECT_EQ(group.ranks(), (std::vector<int>{0, 2}));
        EXPECT_EQ(group.size(), 2);
        EXPECT_EQ(group.description(), "ends of the line");
        EXPECT_EQ(group.is_member(), world.rank() != 1);
        EXPECT_EQ(group.world_rank(1), 2);
        EXPECT_EQ(group.group_rank(2), 1);
        EXPECT_THROW(static_cast<void>(group.group_rank(1)), InvalidArgument);
        EXPECT_THROW(static_cast<void>(group.world_rank(2)), InvalidArgument);
        if (!group.is_member()) return;
        EXPECT_EQ(group.rank(), world.rank() / 2);
        EXPECT_EQ(group.backend(), "gloo");
        EXPECT_EQ(group.timeout(), world.timeout());
        EXPECT_EQ(sum_of_ranks(group), 3);
      },
      kTimeout);
}

TEST(Groups, RefuseRanksThatAreNotMembers) {
  run_ranks(
      2,
      [](const World& world) {
        const auto group = new_group(world, {1});
        if (group.is_member()) {
          EXPECT_EQ(sum_of_ranks(group), 1);
          return;
        }
        auto tensor = torch::ones({2});
        const std::vector<std::function<void()>> calls = {
            [&] { all_reduce(tensor, group); },
            [&] { broadcast(tensor, 0, group); },
            [&] { send(tensor, 0, group); },
            [&] { barrier(group); },
            [&] { monitored_barrier(group); },
            [&] { static_cast<void>(all_gather_object("x", group)); },
            [&] { all_to_all({tensor}, {tensor}, group); },
            [&] { destroy_process_group(group); },
            [&] { static_cast<void>(group.rank()); }};
        for (const auto& call : calls) {
          const std::string message = message_of<InvalidArgument>(call);
          EXPECT_TRUE(contains(message, "rank 0 is not a member")) << message;
        }
      },
      kTimeout);
}

TEST(Groups, OfMembersAloneNeedNobodyElse) {
  run_ranks(
      3,
      [](const World& world) {
        if (world.rank() == 2) return;
        const GroupOptions options = {.callers = Callers::members};
        const auto pair = new_group(world, {0, 1}, options);
        const auto again = new_group(world, {0, 1}, options);
        const auto other = new_group(world, {2}, options);
        EXPECT_FALSE(other.is_member());
        EXPECT_NE(pair.name(), again.name());
        EXPECT_EQ(sum_of_ranks(pair) + sum_of_ranks(again), 6);
      },
      kTimeout);
}

TEST(Groups, ThatDifferBetweenCallersAreRefused) {
  run_ranks(
      2,
      [](const World& world) {
        const std::vector<int> ranks =
            world.rank() == 0 ? std::vector<int>{0} : std::vector<int>{0, 1};
        const std::string message = message_of<InvalidArgument>(
            [&] { static_cast<void>(new_group(world, ranks)); });
        EXPECT_TRUE(contains(message, "unlike groups")) << message;
        EXPECT_TRUE(contains(message, "{0,1}")) << message;
        EXPECT_EQ(sum_of_ranks(new_group(world)), 3);
      },
      kTimeout);
}

TEST(Groups, RefuseBadRanksAndOptions) {
  run_ranks(
      1,
      [](const World& world) {
        for (const std::vector<int>& ranks :
             {std::vector<int>{1}, {-1}, {0, 0}}) {
          EXPECT_THROW(static_cast<void>(new_group(world, ranks)),
                       InvalidArgument);
        }
        EXPECT_THROW(static_cast<void>(new_group(world, {}, {.timeout = 0s})),
                     InvalidArgument);
        const std::string message = message_of<Unsupported>([&] {
          static_cast<void>(new_group(world, {}, {.backend = "mpi"}));
        });
        EXPECT_TRUE(contains(message, "here are: gloo")) << message;
        EXPECT_THROW(static_cast<void>(new_group(World())), InvalidState);
        EXPECT_THROW(static_cast<void>(ProcessGroup().rank()), InvalidState);
      },
      kTimeout);
}

TEST(Groups, CanBeDestroyedBeforeTheirWorld) {
  run_ranks(
      2,
      [](const World& world) {
        const auto first = new_group(world);
        const auto second = new_group(world);
        EXPECT_EQ(sum_of_ranks(first), 3);
        destroy_process_group(first);
        EXPECT_THROW(sum_of_ranks(first), InvalidState);
        EXPECT_EQ(sum_of_ranks(second), 3);
      },
      kTimeout);
}

TEST(Groups, DoNotMixWithEachOtherNorWithTheLibrary) {
  run_ranks(
      2,
      [](const World& world) {
        const auto a = new_group(world);
        const auto b = new_group(world);
        const auto own = world.make_communicator("own", {0, 1});
        auto of_a = torch::full({5}, 1);
        auto of_b = torch::full({5}, 10);
        auto of_own = torch::full({5}, 100);
        const auto start_own = [&] {
          return own->all_reduce(of_own, ReduceOp::sum, {.unit = "u"});
        };
        // Each rank starts the three in another order.
        Pending pending;
        std::vector<Work> works;
        if (world.rank() == 0) {
          pending = start_own();
          works.push_back(all_reduce(of_a, a));
          works.push_back(all_reduce(of_b, b));
        } else {
          works.push_back(all_reduce(of_b, b));
          works.push_back(all_reduce(of_a, a));
          pending = start_own();
        }
        for (Work& work : works) work.wait();
        pending.wait();
        EXPECT_EQ(of_a[4].item<int64_t>(), 2);
        EXPECT_EQ(of_b[4].item<int64_t>(), 20);
        EXPECT_EQ(of_own[4].item<int64_t>(), 200);
      },
      kTimeout);
}

TEST(Errors, OfArgumentsComeBeforeAnythingIsSent) {
  run_ranks(
      2,
      [](const World& world) {
        const auto group = new_group(world);
        auto two = torch::ones({2});
        auto four = torch::ones({4});
        auto square = torch::ones({2, 3});
        auto whole = torch::ones({2}, torch::kInt64);
        auto meta = torch::ones({2}, torch::kMeta);
        const int other = 1 - group.rank();
        const std::vector<std::pair<std::string, std::function<void()>>> cases =
            {{"not contiguous", [&] { all_reduce(square.t(), group); }},
             {"undefined", [&] { all_reduce({}, group); }},
             {"on meta", [&] { all_reduce(meta, group); }},
             {"has no dtype Short",
              [&] { all_reduce(two.to(torch::kInt16), group); }},
             {"avg of Long", [&] { all_reduce(whole, group, ReduceOp::avg); }},
             {"bor of Float", [&] { all_reduce(two, group, ReduceOp::bor); }},
             {"needs a factor",
              [&] { all_reduce(two, group, ReduceOp::premul_sum); }},
             {"root is 2", [&] { broadcast(two, 2, group); }},
             {"root is -1", [&] { reduce(two, -1, group); }},
             {"expected 4", [&] { all_gather_into_tensor(two, two, group); }},
             {"expected one dtype",
              [&] {
                all_gather({two, whole}, two, group);
              }},
             {"got 1 outputs", [&] { all_gather({two}, two, group); }},
             {"expected 2.",
              [&] {
                all_gather({two, four}, two, group);
              }},
             {"expected 2",
              [&] {
                reduce_scatter(two, {four, four}, group);
              }},
             {"belong to the root",
              [&] {
                scatter(two, {two, two}, other, group);
              }},
             {"got 0 outputs", [&] { gather(two, {}, group.rank(), group); }},
             {"peer is 2", [&] { send(two, 2, group); }},
             {"this rank itself", [&] { send(two, group.rank(), group); }},
             {"tag is -1", [&] { send(two, other, group, -1); }},
             {"got 3 splits", [&] {
                all_to_all_single(two, two, group,
                                  {.output = {1, 1}, .input = {1, 1, 0}});
              }}};
        for (const auto& [part, call] : cases) {
          const std::string message = message_of<InvalidArgument>(call);
          EXPECT_TRUE(contains(message, part)) << message;
        }
        EXPECT_EQ(sum_of_ranks(group), 3);
      },
      kTimeout);
}

TEST(Errors, ARankThatDoesNotComeFailsTheOthersWithATable) {
  const std::string message = message_of<CommError>([] {
    run_ranks(
        2,
        [](const World& world) {
          const auto group =
              new_group(world, {}, {.timeout = 2s, .description = "metrics"});
          auto tensor = torch::ones({7});
          if (world.rank() == 0) all_reduce(tensor, group).wait();
          // Rank 1 waits for a message that nobody sends.
          if (world.rank() == 1) recv(tensor, 0, group);
        },
        kTimeout);
  });
  EXPECT_TRUE(contains(message, "all_reduce")) << message;
  EXPECT_TRUE(contains(message, "metrics")) << message;
}

TEST(Errors, AGroupThatOneRankAloneDestroysEndsInTime) {
  const std::string message = message_of<CommError>([] {
    run_ranks(
        2,
        [](const World& world) {
          const auto group = new_group(world, {}, {.timeout = 2s});
          if (world.rank() == 0) destroy_process_group(group);
          world.barrier();
        },
        kTimeout);
  });
  EXPECT_TRUE(contains(message, "destroy_process_group")) << message;
  EXPECT_TRUE(contains(message, "rank 1")) << message;
}

TEST(Errors, AMonitoredBarrierNamesWhoIsMissing) {
  const std::string message = message_of<CommError>([] {
    run_ranks(
        3,
        [](const World& world) {
          const auto group = new_group(world);
          if (world.rank() != 2) {
            monitored_barrier(group, 3s);
          }
          world.barrier();
        },
        kTimeout);
  });
  EXPECT_TRUE(contains(message, "Missing: rank 2")) << message;
}

TEST(Errors, AWaitOfItsOwnTimeEndsInTime) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks(
                   2,
                   [](const World& world) {
                     const auto group = new_group(world);
                     auto tensor = torch::ones({7});
                     if (world.rank() == 0) all_reduce(tensor, group).wait(1s);
                     world.barrier();
                   },
                   kTimeout),
               CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
}

// Has one collective, which doubles instead of adding.
class Pretend final : public c10d::Backend {
 public:
  struct Done final : c10d::Work {
    Done() { finish(); }
  };

  explicit Pretend(const BackendPlace& place)
      : c10d::Backend(place.rank, place.size) {}

  const std::string getBackendName() const override { return "pretend"; }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions&) override {
    tensors[0].mul_(2);
    return c10::make_intrusive<Done>();
  }
};

TEST(Backends, OfTheUserAreMadeByTheirName) {
  run_ranks(
      2,
      [](const World& world) {
        const BackendMaker maker = [](const BackendPlace& place) {
          return c10::make_intrusive<Pretend>(place);
        };
        register_backend(world, "pretend", maker);
        EXPECT_THROW(register_backend(world, "pretend", maker),
                     InvalidArgument);
        EXPECT_THROW(register_backend(world, "Loud", maker), InvalidArgument);
        EXPECT_THROW(register_backend(world, "gloo", maker), InvalidArgument);
        EXPECT_EQ(available_backends(world),
                  (std::vector<std::string>{"gloo", "pretend"}));
        const auto group = new_group(world, {}, {.backend = "cpu:pretend"});
        EXPECT_EQ(group.backend(), "pretend");
        EXPECT_EQ(sum_of_ranks(group), 2 * (world.rank() + 1));
        const std::string message = message_of<Unsupported>(
            [&] { broadcast(torch::ones({2}), 0, group); });
        EXPECT_TRUE(contains(message, "does not support broadcast")) << message;
        const auto gloo = new_group(world);
        monitored_barrier(group);  // through the store
        EXPECT_EQ(sum_of_ranks(gloo), 3);
      },
      kTimeout);
}

}  // namespace
}  // namespace tessera::distributed
