#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/collective_log.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;

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

template <class Body>
void for_each_case(Body body) {
  for (int world_size = 1; world_size <= kMaxRanks; ++world_size) {
    run_ranks(world_size, [&](const World& world) {
      auto comm = world.make_communicator("all", all_ranks(world));
      for (const auto dtype : kDtypes) {
        for (const int64_t numel : {0, 1, 2, 5, 127, 10007}) {
          body(*comm, numel, dtype);
        }
      }
    });
  }
}

TEST(Collectives, AllGatherPutsEveryRanksPartInItsSlot) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < comm.size(); ++r) {
      parts.push_back(numbers(r, numel, dtype));
    }
    auto output = torch::full({comm.size() * numel}, 99, dtype);
    const GatherCall call{output, parts[comm.rank()]};
    comm.all_gather({&call, 1}, {.unit = "u"}).wait();
    EXPECT_TRUE(torch::equal(output, torch::cat(parts)));
  });
}

TEST(Collectives, AllGatherWorksInPlace) {
  for_each_case([](Communicator& comm, int64_t numel, torch::Dtype dtype) {
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < comm.size(); ++r) {
      parts.push_back(numbers(r, numel, dtype));
    }
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
    for (int r = 0; r < comm.size(); ++r) {
      expected += numbers(r + comm.rank(), numel, dtype);
    }
    std::vector<torch::Tensor> slots;
    for (int r = 0; r < comm.size(); ++r) {
      slots.push_back(numbers(comm.rank() + r, numel, dtype));
    }
    auto output = torch::full({numel}, 99, dtype);
    const ReduceCall call{output, torch::cat(slots)};
    comm.reduce_scatter({&call, 1}, {.unit = "u"}).wait();
    EXPECT_TRUE(torch::equal(output, expected));
  });
}

}  // namespace
}  // namespace tessera
