// Each collective against a plain computation, on 1 to 4 ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace tessera {
namespace {

constexpr int kMaxRanks = 4;
constexpr auto kDtypes = {torch::kFloat32, torch::kFloat64, torch::kBFloat16,
                          torch::kHalf,    torch::kInt64,   torch::kUInt8};

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Small whole numbers, so that every dtype holds them and their sums.
torch::Tensor numbers(int rank, int64_t numel, torch::Dtype dtype) {
  return (torch::arange(numel) * 3 + rank * 7).remainder(11).to(dtype);
}

// Numbers whose sum depends on its order.
torch::Tensor rough_numbers(int rank, int64_t numel) {
  const auto i = torch::arange(numel, torch::kFloat64);
  return (torch::sin(i + 1000 * rank) * torch::pow(10.0, (i + rank) % 9))
      .to(torch::kFloat32);
}

template <class Body>
void for_each_world(Body body) {
  for (int world_size = 1; world_size <= kMaxRanks; ++world_size) {
    run_ranks(world_size, [&](const World& world) {
      body(*world.make_communicator("all", all_ranks(world)));
    });
  }
}

template <class Body>
void for_each_case(Body body) {
  for_each_world([&](Communicator& comm) {
    for (const auto dtype : kDtypes) {
      for (const int64_t numel : {0, 1, 2, 5, 127, 10007}) {
        body(comm, numel, dtype);
      }
    }
  });
}

std::vector<torch::Tensor> parts_of(const Communicator& comm, int64_t numel,
                                    torch::Dtype dtype) {
  std::vector<torch::Tensor> parts;
  for (int r = 0; r < comm.size(); ++r) {
    parts.push_back(numbers(r, numel, dtype));
  }
  return parts;
}

TEST(Collectives, AllGatherPutsEveryRanksPartInItsSlot) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    const auto parts = parts_of(comm, numel, dtype);
    auto output = torch::full({comm.size() * numel}, 99, dtype);
    const GatherCall call{output, parts[comm.rank()]};
    comm.all_gather({&call, 1}, {.unit = "u"}).wait();
    EXPECT_TRUE(torch::equal(output, torch::cat(parts)));
  });
}

TEST(Collectives, AllGatherWorksInPlace) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    const auto parts = parts_of(comm, numel, dtype);
    auto output = torch::full({comm.size() * numel}, 99, dtype);
    auto own = output.narrow(0, comm.rank() * numel, numel);
    own.copy_(parts[comm.rank()]);
    const GatherCall call{output, own};
    comm.all_gather({&call, 1}, {.unit = "u"}).wait();
    EXPECT_TRUE(torch::equal(output, torch::cat(parts)));
  });
}

TEST(Collectives, ReduceScatterSumsEveryRanksSlot) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    auto expected = torch::zeros({numel}, dtype);
    std::vector<torch::Tensor> slots;
    for (int r = 0; r < comm.size(); ++r) {
      expected += numbers(r + comm.rank(), numel, dtype);
      slots.push_back(numbers(comm.rank() + r, numel, dtype));
    }
    auto output = torch::full({numel}, 99, dtype);
    const ReduceCall call{output, torch::cat(slots)};
    comm.reduce_scatter({&call, 1}, {.unit = "u"}).wait();
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

TEST(Collectives, ReduceScatterSumsInRankOrder) {
  constexpr int64_t kNumel = 10007;
  for_each_world([](Communicator& comm) {
    auto expected = rough_numbers(0, kNumel);
    for (int r = 1; r < comm.size(); ++r) expected += rough_numbers(r, kNumel);
    const auto input = rough_numbers(comm.rank(), kNumel).repeat(comm.size());
    auto output = torch::empty({kNumel});
    const ReduceCall call{output, input};
    comm.reduce_scatter({&call, 1}, {}).wait();
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

TEST(Collectives, ReduceScatterRoundsHalfTypesOnce) {
  constexpr int64_t kNumel = 1009;
  for_each_world([](Communicator& comm) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      const auto of = [&](int rank) {
        return torch::sin(torch::arange(kNumel) + 100.0 * rank).to(dtype);
      };
      auto sum = of(0).to(torch::kFloat32);
      for (int r = 1; r < comm.size(); ++r) sum += of(r).to(torch::kFloat32);
      auto output = torch::empty({kNumel}, dtype);
      const ReduceCall call{output, of(comm.rank()).repeat(comm.size())};
      comm.reduce_scatter({&call, 1}, {}).wait();
      EXPECT_TRUE(torch::equal(output, sum.to(dtype)));
    }
  });
}

// More elements than the sum takes at a time.
TEST(Collectives, ReduceScatterSumsHalfTypesAsFloatWithoutRounding) {
  constexpr int64_t kNumel = 70'001;
  for_each_world([](Communicator& comm) {
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      ASSERT_TRUE(comm.sums_as(dtype, torch::kFloat32));
      const auto of = [&](int rank) {
        return torch::sin(torch::arange(kNumel) + 100.0 * rank).to(dtype);
      };
      auto expected = of(0).to(torch::kFloat32);
      for (int r = 1; r < comm.size(); ++r) {
        expected += of(r).to(torch::kFloat32);
      }
      auto output = torch::full({kNumel}, NAN);
      const ReduceCall call{output, of(comm.rank()).repeat(comm.size())};
      comm.reduce_scatter({&call, 1}, {}).wait();
      EXPECT_TRUE(torch::equal(output, expected));
    }
  });
}

TEST(Collectives, ReduceScatterRefusesOtherDtypesThanItSums) {
  for_each_world([](Communicator& comm) {
    for (const auto& [from, to] :
         {std::pair{torch::kFloat32, torch::kBFloat16},
          std::pair{torch::kFloat32, torch::kFloat64},
          std::pair{torch::kBFloat16, torch::kHalf},
          std::pair{torch::kInt64, torch::kFloat32}}) {
      EXPECT_FALSE(comm.sums_as(from, to));
      const ReduceCall call{torch::empty({4}, to),
                            torch::empty({4 * comm.size()}, from)};
      EXPECT_THROW((void)comm.reduce_scatter({&call, 1}, {}), InvalidArgument);
    }
  });
}

TEST(Collectives, PiecesAndCastsAreRefusedWhereNobodyTakesThem) {
  for_each_world([](Communicator& comm) {
    const auto part = torch::zeros({3});
    EXPECT_FALSE(comm.takes_pieces(torch::kFloat32, torch::kFloat32));
    const PiecewiseReduceCall reduce{
        part, torch::kFloat32, {{torch::ones({3 * comm.size()}), 0}}};
    EXPECT_THROW((void)comm.reduce_scatter_pieces({&reduce, 1}, {}),
                 Unsupported);
    EXPECT_FALSE(comm.gathers_as(torch::kFloat32, torch::kBFloat16));
    const GatherCall gather{torch::empty({3 * comm.size()}, torch::kBFloat16),
                            part};
    EXPECT_THROW((void)comm.all_gather({&gather, 1}, {}), InvalidArgument);
  });
}

TEST(Collectives, ReduceScatterMayWriteOverItsInput) {
  for_each_world([](Communicator& comm) {
    auto input = torch::cat(std::vector<torch::Tensor>(
        comm.size(), numbers(comm.rank(), 13, torch::kFloat32)));
    auto expected = torch::zeros({13});
    for (int r = 0; r < comm.size(); ++r) {
      expected += numbers(r, 13, torch::kFloat32);
    }
    auto output = input.narrow(0, comm.rank() * 13, 13);
    const ReduceCall call{output, input};
    comm.reduce_scatter({&call, 1}, {}).wait();
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

TEST(Collectives, SeveralCallsTravelTogether) {
  for_each_world([](Communicator& comm) {
    const std::vector<int64_t> sizes = {3, 0, 7, 1};
    std::vector<GatherCall> gathers;
    std::vector<ReduceCall> reduces;
    for (const int64_t n : sizes) {
      gathers.push_back({torch::empty({comm.size() * n}),
                         numbers(comm.rank(), n, torch::kFloat32)});
      reduces.push_back(
          {torch::empty({n}), numbers(n, comm.size() * n, torch::kFloat32)});
    }
    Pending gather = comm.all_gather(gathers, {.unit = "a"});
    Pending reduce = comm.reduce_scatter(reduces, {.unit = "b"});
    reduce.wait();
    gather.wait();
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_TRUE(
          torch::equal(gathers[i].output,
                       torch::cat(parts_of(comm, sizes[i], torch::kFloat32))));
      const auto slot = reduces[i].input.chunk(comm.size())[0];
      const auto own =
          reduces[i].input.narrow(0, comm.rank() * sizes[i], sizes[i]);
      EXPECT_TRUE(torch::equal(reduces[i].output, own * comm.size()));
    }
  });
}

TEST(Collectives, AllReduceCombinesAndLeavesTheSameBitsEverywhere) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    for (const auto op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      auto expected = numbers(0, numel, dtype);
      for (int r = 1; r < comm.size(); ++r) {
        const auto other = numbers(r, numel, dtype);
        expected = op == ReduceOp::sum   ? expected + other
                   : op == ReduceOp::min ? torch::minimum(expected, other)
                                         : torch::maximum(expected, other);
      }
      auto tensor = numbers(comm.rank(), numel, dtype);
      comm.all_reduce(tensor, op, {.unit = "u"}).wait();
      EXPECT_TRUE(torch::equal(tensor, expected));
    }
  });
}

// Small and large tensors take different ways; both sum in rank order.
TEST(Collectives, AllReduceSumsInRankOrderAtEverySize) {
  for_each_world([](Communicator& comm) {
    for (const int64_t numel : {1009, 100003}) {
      auto expected = rough_numbers(0, numel);
      for (int r = 1; r < comm.size(); ++r) expected += rough_numbers(r, numel);
      auto tensor = rough_numbers(comm.rank(), numel);
      comm.all_reduce(tensor, ReduceOp::sum, {}).wait();
      EXPECT_TRUE(torch::equal(tensor, expected));
    }
  });
}

TEST(Collectives, BroadcastCopiesFromAnyRoot) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    for (int root = 0; root < comm.size(); ++root) {
      auto tensor = numbers(comm.rank(), numel, dtype);
      comm.broadcast(tensor, root, {.unit = "u"}).wait();
      EXPECT_TRUE(torch::equal(tensor, numbers(root, numel, dtype)));
    }
  });
}

TEST(Collectives, ExchangeGivesEveryRanksBytesInRankOrder) {
  for_each_world([](Communicator& comm) {
    for (int round = 0; round < 3; ++round) {
      const std::string own =
          std::string("\0zero and rank ", 15) + std::to_string(comm.rank());
      const auto all = comm.exchange(round == 1 ? "" : own, {});
      ASSERT_EQ(all.size(), static_cast<size_t>(comm.size()));
      for (int r = 0; r < comm.size(); ++r) {
        const std::string expected =
            std::string("\0zero and rank ", 15) + std::to_string(r);
        EXPECT_EQ(all[r], round == 1 ? "" : expected);
      }
    }
  });
}

TEST(Collectives, NobodyLeavesABarrierBeforeTheLastHasCome) {
  for (int world_size = 2; world_size <= kMaxRanks; ++world_size) {
    std::atomic<int> arrived = 0;
    run_ranks(world_size, [&](const World& world) {
      auto comm = world.make_communicator("all", all_ranks(world));
      for (int round = 1; round <= 3; ++round) {
        ++arrived;
        comm->barrier({});
        EXPECT_GE(arrived, round * world_size);
        world.barrier();
      }
    });
  }
}

TEST(Collectives, ManyMayBeUnderWayAndEndInAnyOrder) {
  for_each_world([](Communicator& comm) {
    constexpr int kCalls = 20;
    std::vector<torch::Tensor> outputs;
    std::vector<Pending> pending;
    for (int i = 0; i < kCalls; ++i) {
      outputs.push_back(torch::empty({comm.size() * 50}));
      const GatherCall call{outputs.back(),
                            torch::full({50}, 100.0 * i + comm.rank())};
      pending.push_back(comm.all_gather({&call, 1}, {.unit = "u"}));
    }
    for (int i = kCalls - 1; i >= 0; --i) pending[i].wait();
    for (int i = 0; i < kCalls; ++i) {
      for (int r = 0; r < comm.size(); ++r) {
        EXPECT_EQ(outputs[i][r * 50].item<float>(), 100.0F * i + r);
      }
    }
  });
}

TEST(Collectives, WorkInSubgroupsThatOnlyTheirRanksMake) {
  run_ranks(4, [](const World& world) {
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    auto shard = world.make_communicator("shard", {2 * row, 2 * row + 1});
    auto replicate = world.make_communicator("replicate", {column, column + 2});
    auto reversed = world.make_communicator("reversed", {3, 2, 1, 0});
    EXPECT_EQ(shard->rank(), column);
    EXPECT_EQ(replicate->rank(), row);
    EXPECT_EQ(reversed->rank(), 3 - world.rank());
    auto sum = torch::full({5}, world.rank());
    shard->all_reduce(sum, ReduceOp::sum, {}).wait();
    EXPECT_EQ(sum[0].item<int64_t>(), 4 * row + 1);
    replicate->all_reduce(sum, ReduceOp::sum, {}).wait();
    EXPECT_EQ(sum[4].item<int64_t>(), 6);
    const auto names = reversed->exchange(std::to_string(world.rank()), {});
    EXPECT_EQ(names, (std::vector<std::string>{"3", "2", "1", "0"}));
  });
}

TEST(Collectives, RecordNothingForAutogradAndMoveNoVersion) {
  run_ranks(2, [](const World& world) {
    auto comm = world.make_communicator("all", all_ranks(world));
    auto output = torch::zeros({6}, torch::requires_grad());
    auto input = torch::ones({3}, torch::requires_grad());
    const auto version = output._version();
    const GatherCall call{output, input};
    comm->all_gather({&call, 1}, {}).wait();
    EXPECT_EQ(output._version(), version);
    EXPECT_TRUE(output.is_leaf());
    EXPECT_EQ(output.sum().item<float>(), 6.0F);
  });
}

template <class Body>
std::string refusal(Body&& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Collectives, RefuseTensorsThatDoNotFit) {
  run_ranks(2, [](const World& world) {
    auto comm = world.make_communicator("all", all_ranks(world));
    const auto gather = [&](at::Tensor output, at::Tensor input) {
      return refusal([&] {
        const GatherCall call{output, input};
        comm->all_gather({&call, 1}, {.unit = "layers.3"}).wait();
      });
    };
    const auto ones = torch::ones({4});
    EXPECT_NE(gather(torch::ones({7}), ones)
                  .find("'layers.3': got a whole of "
                        "7 Float elements and a part "
                        "of 4 Float"),
              std::string::npos);
    EXPECT_NE(gather(torch::ones({8}, torch::kHalf), ones), "");
    EXPECT_NE(gather(torch::ones({4, 2}).t(), ones).find("not contiguous"),
              std::string::npos);
    EXPECT_NE(gather(torch::ones({8}, torch::kMeta), ones).find("meta"),
              std::string::npos);
    EXPECT_NE(gather({}, ones).find("undefined"), std::string::npos);
    EXPECT_NE(refusal([&] { comm->broadcast(ones, 2, {}).wait(); }), "");
  });
}

TEST(MakeCommunicator, RefusesRanksThatMakeNoGroup) {
  run_ranks(2, [](const World& world) {
    const auto make = [&](const std::vector<int>& ranks) {
      return refusal([&] { (void)world.make_communicator("x", ranks); });
    };
    EXPECT_NE(make({}), "");
    EXPECT_NE(make({1 - world.rank()}), "");
    EXPECT_NE(make({0, 1, 1}), "");
    EXPECT_NE(make({0, 1, 2}), "");
    EXPECT_EQ(make({0, 1}), "");
    EXPECT_NE(make({0, 1}).find("exists already"), std::string::npos);
  });
}

}  // namespace
}  // namespace tessera
