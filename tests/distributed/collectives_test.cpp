// Each collective against its definition, on groups of 1 to 3 ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"

namespace tessera::distributed {
namespace {

using namespace std::chrono_literals;
using Tensors = std::vector<torch::Tensor>;

constexpr auto kTimeout = 20s;
constexpr auto kDtypes = {torch::kFloat32, torch::kFloat64, torch::kBFloat16,
                          torch::kHalf,    torch::kInt64,   torch::kInt32,
                          torch::kInt8,    torch::kUInt8};
constexpr auto kOps = {ReduceOp::sum, ReduceOp::avg, ReduceOp::product,
                       ReduceOp::min, ReduceOp::max, ReduceOp::band,
                       ReduceOp::bor, ReduceOp::bxor};

template <class Body>
void for_each_group(Body body) {
  for (const int size : {1, 2, 3}) {
    run_ranks(
        size, [&](const World& world) { body(new_group(world)); }, kTimeout);
  }
}

// 1, 2 or 3, so that every dtype holds a product of three.
torch::Tensor numbers(int rank, int64_t numel, torch::Dtype dtype) {
  return ((torch::arange(numel) * 5 + rank * 7).remainder(3) + 1).to(dtype);
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

bool has_meaning(ReduceOp op, torch::Dtype dtype) {
  const bool floats = torch::isFloatingType(dtype);
  return is_bitwise(op) ? !floats : op != ReduceOp::avg || floats;
}

torch::Tensor combine(ReduceOp op, const torch::Tensor& a,
                      const torch::Tensor& b) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return torch::minimum(a, b);
    case ReduceOp::max:
      return torch::maximum(a, b);
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
    default:
      return a + b;
  }
}

torch::Tensor reduced(ReduceOp op, const Tensors& pieces) {
  torch::Tensor result = pieces[0].clone();
  for (size_t i = 1; i < pieces.size(); ++i) {
    result = combine(op, result, pieces[i]);
  }
  return op == ReduceOp::avg ? result / static_cast<int64_t>(pieces.size())
                             : result;
}

Tensors pieces_of(const ProcessGroup& group, int64_t numel,
                  torch::Dtype dtype) {
  Tensors pieces;
  for (int rank = 0; rank < group.size(); ++rank) {
    pieces.push_back(numbers(rank, numel, dtype));
  }
  return pieces;
}

template <class Body>
void for_each_reduction(Body body) {
  for_each_group([&](const ProcessGroup& group) {
    for (const auto dtype : kDtypes) {
      for (const ReduceOp op : kOps) {
        if (has_meaning(op, dtype)) body(group, op, dtype);
      }
    }
  });
}

TEST(Distributed, AllReduceCombinesAllRanks) {
  for_each_reduction(
      [](const ProcessGroup& group, ReduceOp op, torch::Dtype dtype) {
        for (const int64_t numel : {0, 1, 1007}) {
          auto tensor = numbers(group.rank(), numel, dtype);
          all_reduce(tensor, group, op).wait();
          EXPECT_TRUE(
              torch::equal(tensor, reduced(op, pieces_of(group, numel, dtype))))
              << static_cast<int>(op) << " " << dtype;
        }
      });
}

TEST(Distributed, ReduceCombinesOnTheRoot) {
  for_each_reduction([](const ProcessGroup& group, ReduceOp op,
                        torch::Dtype dtype) {
    const int root = group.size() - 1;
    auto tensor = numbers(group.rank(), 11, dtype);
    reduce(tensor, root, group, op).wait();
    if (group.rank() != root) return;
    EXPECT_TRUE(torch::equal(tensor, reduced(op, pieces_of(group, 11, dtype))))
        << static_cast<int>(op) << " " << dtype;
  });
}

TEST(Distributed, ReduceScatterLeavesEachRankItsPart) {
  for_each_reduction(
      [](const ProcessGroup& group, ReduceOp op, torch::Dtype dtype) {
        const int64_t whole = 5 * group.size();
        const auto expected = reduced(op, pieces_of(group, whole, dtype))
                                  .narrow(0, 5 * group.rank(), 5);
        const auto input = numbers(group.rank(), whole, dtype);
        auto output = torch::zeros({5}, dtype);
        reduce_scatter_tensor(output, input, group, op).wait();
        EXPECT_TRUE(torch::equal(output, expected));
        output.zero_();
        reduce_scatter(output, input.chunk(group.size()), group, op).wait();
        EXPECT_TRUE(torch::equal(output, expected));
      });
}

TEST(Distributed, ReduceScatterTakesUnlikeSizes) {
  for_each_group([](const ProcessGroup& group) {
    const auto inputs_of = [&](int rank) {
      Tensors inputs;
      for (int r = 0; r < group.size(); ++r) {
        inputs.push_back(numbers(rank + r, 2 * r, torch::kFloat32));
      }
      return inputs;
    };
    Tensors pieces;
    for (int rank = 0; rank < group.size(); ++rank) {
      pieces.push_back(inputs_of(rank)[group.rank()]);
    }
    auto output = torch::zeros({2 * group.rank()});
    reduce_scatter(output, inputs_of(group.rank()), group).wait();
    EXPECT_TRUE(torch::equal(output, reduced(ReduceOp::sum, pieces)));
  });
}

TEST(Distributed, PremulSumMultipliesFirst) {
  for_each_group([](const ProcessGroup& group) {
    const int size = group.size();
    const double factor = 0.5 * (group.rank() + 1);
    auto expected = torch::zeros({4});
    for (int rank = 0; rank < size; ++rank) {
      expected += 0.5 * (rank + 1) * numbers(rank, 4, torch::kFloat32);
    }
    auto tensor = numbers(group.rank(), 4, torch::kFloat32);
    const auto input = tensor.repeat(size);
    all_reduce(tensor, group, premul_sum(factor)).wait();
    EXPECT_TRUE(torch::equal(tensor, expected));
    auto output = torch::zeros({4});
    const auto kept = input.clone();
    reduce_scatter_tensor(output, input, group, premul_sum(factor)).wait();
    EXPECT_TRUE(torch::equal(output, expected));
    EXPECT_TRUE(torch::equal(input, kept));
  });
}

TEST(Distributed, TruthValuesStayTruthValues) {
  run_ranks(
      3,
      [](const World& world) {
        const auto group = new_group(world);
        const auto own = torch::tensor({true, world.rank() == 1, false});
        const auto any = torch::tensor({true, true, false});
        const auto all = torch::tensor({true, false, false});
        const std::vector<std::pair<ReduceOp, torch::Tensor>> cases = {
            {ReduceOp::sum, any},     {ReduceOp::max, any},
            {ReduceOp::bor, any},     {ReduceOp::min, all},
            {ReduceOp::product, all}, {ReduceOp::band, all}};
        for (const auto& [op, expected] : cases) {
          auto tensor = own.clone();
          all_reduce(tensor, group, op).wait();
          EXPECT_TRUE(torch::equal(tensor, expected)) << static_cast<int>(op);
          EXPECT_EQ(tensor.view(torch::kUInt8).max().item<int>(), 1);
        }
      },
      kTimeout);
}

TEST(Distributed, ComplexNumbersAreSummedAndMoved) {
  for_each_group([](const ProcessGroup& group) {
    const auto of = [](int rank) {
      return torch::complex(numbers(rank, 6, torch::kFloat32),
                            numbers(rank + 1, 6, torch::kFloat32));
    };
    auto expected = of(0);
    for (int rank = 1; rank < group.size(); ++rank) expected += of(rank);
    auto tensor = of(group.rank());
    all_reduce(tensor, group).wait();
    EXPECT_TRUE(torch::equal(tensor, expected));
    const auto input = of(group.rank()).view({2, 3});
    auto output = torch::zeros({2 * group.size(), 3}, torch::kComplexFloat);
    all_gather_into_tensor(output, input, group).wait();
    EXPECT_TRUE(torch::equal(output.narrow(0, 0, 2), of(0).view({2, 3})));
    EXPECT_THROW(all_reduce(tensor, group, ReduceOp::max), InvalidArgument);
  });
}

TEST(Distributed, BroadcastCopiesTheRoot) {
  for_each_group([](const ProcessGroup& group) {
    for (const auto dtype : kDtypes) {
      for (int root = 0; root < group.size(); ++root) {
        auto tensor = numbers(group.rank(), 17, dtype);
        broadcast(tensor, root, group).wait();
        EXPECT_TRUE(torch::equal(tensor, numbers(root, 17, dtype)));
      }
    }
  });
}

TEST(Distributed, AllGatherCollectsInRankOrder) {
  for_each_group([](const ProcessGroup& group) {
    for (const int64_t numel : {0, 1, 9}) {
      const auto pieces = pieces_of(group, numel, torch::kFloat32);
      auto whole = torch::zeros({group.size() * numel});
      all_gather_into_tensor(whole, pieces[group.rank()], group).wait();
      EXPECT_TRUE(torch::equal(whole, torch::cat(pieces)));
      Tensors outputs;
      for (int rank = 0; rank < group.size(); ++rank) {
        outputs.push_back(torch::zeros({1, numel}));
      }
      all_gather(outputs, pieces[group.rank()], group).wait();
      EXPECT_TRUE(torch::equal(torch::cat(outputs).view({-1}), whole));
    }
  });
}

TEST(Distributed, GatherAndScatterAreOfTheRoot) {
  for_each_group([](const ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      const auto pieces = pieces_of(group, 5, torch::kInt64);
      Tensors outputs;
      for (int r = 0; group.rank() == root && r < group.size(); ++r) {
        outputs.push_back(torch::zeros({5}, torch::kInt64));
      }
      gather(pieces[group.rank()], outputs, root, group).wait();
      if (group.rank() == root) {
        EXPECT_TRUE(torch::equal(torch::cat(outputs), torch::cat(pieces)));
      }
      auto output = torch::zeros({5}, torch::kInt64);
      scatter(output, outputs, root, group).wait();
      EXPECT_TRUE(torch::equal(output, pieces[group.rank()]));
    }
  });
}

// What rank `from` has for rank `to`.
torch::Tensor parcel(int from, int to, int64_t numel) {
  return torch::arange(numel, torch::kFloat32) + 100 * from + 10 * to;
}

TEST(Distributed, AllToAllTurnsListsAround) {
  for_each_group([](const ProcessGroup& group) {
    Tensors inputs;
    Tensors outputs;
    Tensors expected;
    for (int r = 0; r < group.size(); ++r) {
      inputs.push_back(parcel(group.rank(), r, group.rank() + 2 * r));
      expected.push_back(parcel(r, group.rank(), r + 2 * group.rank()));
      outputs.push_back(torch::zeros_like(expected.back()));
    }
    all_to_all(outputs, inputs, group).wait();
    EXPECT_TRUE(torch::equal(torch::cat(outputs), torch::cat(expected)));
  });
}

TEST(Distributed, AllToAllSingleTurnsRowsAround) {
  for_each_group([](const ProcessGroup& group) {
    const int size = group.size();
    Tensors inputs;
    Tensors expected;
    Splits splits;
    for (int r = 0; r < size; ++r) {
      inputs.push_back(parcel(group.rank(), r, 3 * (group.rank() + r)));
      expected.push_back(parcel(r, group.rank(), 3 * (group.rank() + r)));
      splits.input.push_back(group.rank() + r);
      splits.output.push_back(group.rank() + r);
    }
    const auto whole = torch::cat(expected).view({-1, 3});
    auto output = torch::zeros_like(whole);
    all_to_all_single(output, torch::cat(inputs).view({-1, 3}), group, splits)
        .wait();
    EXPECT_TRUE(torch::equal(output, whole));
    auto equal_rows = torch::full({size, 2}, 9.0);
    all_to_all_single(equal_rows, torch::full({size, 2}, 1.0 * group.rank()),
                      group)
        .wait();
    const auto ranks = torch::arange(size, torch::kFloat32);
    EXPECT_TRUE(torch::equal(equal_rows, ranks.view({-1, 1}).repeat({1, 2})));
  });
}

}  // namespace
}  // namespace tessera::distributed
