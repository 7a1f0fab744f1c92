// Calls on groups under TESSERA_CHECK_COLLECTIVES.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"
#include "tests/distributed/group_checks.h"

namespace tessera::distributed {
namespace {

/// TESSERA_CHECK_COLLECTIVES, while this lives.
struct CheckCollectives {
  CheckCollectives() { ::setenv("TESSERA_CHECK_COLLECTIVES", "on", 1); }
  ~CheckCollectives() { ::unsetenv("TESSERA_CHECK_COLLECTIVES"); }
};

/// What two ranks are told that make unlike calls on a group.
std::string difference_of(
    const std::function<void(const ProcessGroup&, bool first)>& call) {
  const CheckCollectives check;
  return message_of<CommError>([&] {
    run_ranks(
        2,
        [&](const World& world) {
          const auto group = new_group(world);
          call(group, group.rank() == 0);
        },
        kTimeout);
  });
}

TEST(Check, ComparesOperationsRootsAndSizesOfGroups) {
  const auto start = std::chrono::steady_clock::now();
  const auto ones = [](int64_t numel) { return torch::ones({numel}); };
  std::string said = difference_of([&](const auto& group, bool first) {
    all_reduce(ones(2), group, first ? ReduceOp::sum : ReduceOp::max).wait();
  });
  EXPECT_TRUE(contains(said, "the first difference is the operation")) << said;
  EXPECT_TRUE(contains(said, "rank 0 calls all_reduce by sum (2 F")) << said;
  EXPECT_TRUE(contains(said, "rank 1 calls all_reduce by max (2 F")) << said;
  said = difference_of([&](const auto& group, bool first) {
    broadcast(ones(2), first ? 0 : 1, group).wait();
  });
  EXPECT_TRUE(contains(said, "the first difference is the root")) << said;
  EXPECT_TRUE(contains(said, "rank 1 calls broadcast with root 1")) << said;
  said = difference_of([&](const auto& group, bool first) {
    all_reduce(ones(first ? 2 : 3), group).wait();
  });
  EXPECT_TRUE(contains(said, "the first difference is the size")) << said;
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout);
}

TEST(Check, LetsLikeCallsOfGroupsPass) {
  const CheckCollectives check;
  run_ranks(
      3,
      [](const World& world) {
        const auto group = new_group(world);
        const auto ends = new_group(world, {0, 2});
        EXPECT_EQ(sum_of_ranks(group), 6);
        if (ends.is_member()) {
          EXPECT_EQ(sum_of_ranks(ends), 3);
        }
        const std::string own(static_cast<size_t>(group.rank()), 'x');
        EXPECT_EQ(all_gather_object(own, group).back(), "xx");
        const auto mine = torch::full({1}, group.rank());
        std::vector<torch::Tensor> all;
        if (group.rank() == 1)
          all = torch::zeros({3, 1}, mine.options()).unbind();
        gather(mine, all, 1, group).wait();
        if (group.rank() == 1) {
          EXPECT_EQ(all[2].item<int64_t>(), 2);
        }
        if (group.rank() == 0) send(mine, 1, group);
        if (group.rank() == 1) {
          EXPECT_EQ(recv(mine, 0, group), 0);
        }
        barrier(group).wait();
      },
      kTimeout);
}

}  // namespace
}  // namespace tessera::distributed
