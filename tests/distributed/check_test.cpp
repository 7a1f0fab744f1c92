// Calls on groups under TESSERA_CHECK_COLLECTIVES.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
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

void sleep_a_moment() {
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_TRUE(contains(text, part)) << "'" << part << "' is not in:\n" << text;
}

TEST(Check, NamesBothEndsOfAnUnlikeMessageWhicheverComesFirst) {
  for (const bool sender_first : {true, false}) {
    auto received = torch::zeros({3});
    const std::string said = difference_of([&](const auto& group, bool first) {
      if (first != sender_first) sleep_a_moment();
      if (first) {
        isend(torch::ones({4}), 1, group, 7).wait();
      } else {
        irecv(received, 0, group, 7).wait();
      }
    });
    expect_says(said,
                "the two ends of message 1 on 'group 0 0>1' with tag 7 are "
                "unlike; the first difference is the size: rank ");
    expect_says(said, "rank 0 calls send of 4 Float elements");
    expect_says(said, "rank 1 calls recv of 3 Float elements");
    EXPECT_TRUE(torch::equal(received, torch::zeros({3})));
  }
}

TEST(Check, ComparesTheTypesOfMessagesThatHaveAsManyBytes) {
  auto received = torch::zeros({2}, torch::kInt32);
  const std::string said = difference_of([&](const auto& group, bool first) {
    if (first) send(torch::ones({2}), 1, group);
    if (!first) recv(received, 0, group);
  });
  expect_says(said, "the first difference is the dtype: rank ");
  expect_says(said, "rank 0 calls send of 2 Float elements");
  expect_says(said, "rank 1 calls recv of 2 Int elements");
  EXPECT_TRUE(torch::equal(received, torch::zeros({2}, torch::kInt32)));
}

TEST(Check, FindsMessagesThatAreReceivedInAnotherOrder) {
  const std::string said = difference_of([&](const auto& group, bool first) {
    auto one = torch::zeros({1});
    auto two = torch::zeros({2});
    auto three = torch::zeros({3});
    const auto works = first
                           ? batch_isend_irecv({{Direction::send, one, 1},
                                                {Direction::send, two, 1},
                                                {Direction::send, three, 1}},
                                               group)
                           : batch_isend_irecv({{Direction::receive, one, 0},
                                                {Direction::receive, three, 0},
                                                {Direction::receive, two, 0}},
                                               group);
  });
  expect_says(said, "message 2 on 'group 0 0>1'");
  expect_says(said, "rank 0 calls send of 2 Float elements");
  expect_says(said, "rank 1 calls recv of 3 Float elements");
}

// Tags may meet in any order, and both ranks may send first.
TEST(Check, LetsLikeMessagesPassInEveryOrderOfTheRanks) {
  const CheckCollectives check;
  run_ranks(
      2,
      [](const World& world) {
        const auto group = new_group(world);
        const int peer = 1 - group.rank();
        for (int round = 0; round < 3; ++round) {
          auto few = torch::zeros({2});
          auto many = torch::zeros({5}, torch::kInt64);
          auto none = torch::zeros({0});
          Work work_of_few = isend(torch::full({2}, round + 1.0), peer, group);
          Work work_of_many =
              isend(torch::full({5}, round + 2), peer, group, 1);
          send(none, peer, group);
          if (group.rank() == 0) recv(few, peer, group);
          recv(many, peer, group, 1);
          if (group.rank() == 1) recv(few, peer, group);
          recv(none, peer, group);
          EXPECT_EQ(few[1].item<double>(), round + 1);
          EXPECT_EQ(many[4].item<int64_t>(), round + 2);
          work_of_few.wait();
          work_of_many.wait();
        }
      },
      kTimeout);
}

TEST(Check, LeavesMessagesFromAnySourceOut) {
  const CheckCollectives check;
  run_ranks(
      3,
      [](const World& world) {
        const auto group = new_group(world);
        auto one = torch::ones({1});
        auto two = torch::ones({2});
        if (group.rank() > 0) {
          send(one, 0, group);
          send(two, 0, group);
          return;
        }
        const int source = recv(one, kAnySource, group);
        EXPECT_EQ(recv(two, source, group), source);
        EXPECT_EQ(recv(one, 3 - source, group), 3 - source);
        EXPECT_EQ(recv(two, kAnySource, group), 3 - source);
      },
      kTimeout);
}

}  // namespace
}  // namespace tessera::distributed
