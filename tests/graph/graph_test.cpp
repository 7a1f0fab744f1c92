// What of captured steps can be tested without a GPU; the rest is
// tests/device/graph.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <string>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/replayed_calls.h"
#include "tessera/comm/world.h"
#include "tessera/graph/failed_operator.h"
#include "tessera/graph/graphed_step.h"
#include "tessera/shard/gradient_memory.h"

namespace tessera {
namespace {

TEST(GraphedStep, IsRefusedByNameWhereThereAreNoGraphs) {
  environment::disable_flight_recorder();
  run_ranks(1, [](const World& world) {
    torch::nn::Linear model(2, 2);
    AdamW optimizer(model->parameters());
    try {
      const GraphedStep step(*model, optimizer, init_device_mesh(world),
                             [](const TensorVector& in) { return in; });
      ADD_FAILURE() << "no error";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("CUDA graph"), std::string::npos)
          << error.what();
    }
  });
}

TEST(FailedOperator, IsTheInnermostOneThatAnExceptionLeft) {
  const FailedOperator failed;
  EXPECT_EQ(failed.describe(), "");
  const torch::Tensor a = torch::ones({2}), b = torch::ones({3});
  EXPECT_NO_THROW(a + a);
  EXPECT_ANY_THROW(a + b);
  EXPECT_EQ(failed.describe(), "aten::add");
}

TEST(FailedOperator, NamesWhoCalledIt) {
  const FailedOperator failed;
  EXPECT_ANY_THROW(torch::matmul(torch::ones({2, 3}), torch::ones({4, 5})));
  EXPECT_EQ(failed.describe(), "aten::mm, called by aten::matmul");
}

TEST(GradientMemory, RecallsTheLastAnswerToTheSameQuestion) {
  const GradientFlags own = {{{true, false}}}, other = {{{false, false}}};
  const GradientFlags one = {{{true, true}}}, two = {{{false, true}}};
  GradientMemory memory;
  memory.remember(own, own);
  memory.remember(other, two);
  memory.remember(own, one);
  EXPECT_EQ(memory.recall(own), one);
  EXPECT_EQ(memory.recall(other), two);
  EXPECT_THROW((void)memory.recall(two), InvalidState);
}

CollectiveEntry call(const std::string& communicator, const std::string& unit) {
  CollectiveEntry entry;
  entry.communicator = communicator;
  entry.kind = "all_gather";
  entry.unit = unit;
  return entry;
}

// On CPU a capture does what it notes, so that it is a replay as well.
TEST(ReplayedCalls, ATimelyReplayIsNotOverdue) {
  using namespace std::chrono_literals;
  ReplayedCalls calls;
  EXPECT_FALSE(calls.overdue(0ms)) << "nothing was ever captured";
  calls.prepare(at::kCPU);
  calls.launch();
  calls.begin();
  EXPECT_FALSE(calls.overdue(1h)) << "its time is not over";
  calls.note(call("gather", "u1"));
  calls.end();
  EXPECT_FALSE(calls.overdue(0ms)) << "it is through";
}

TEST(ReplayedCalls, TheFirstCallThatDidNotEndIsWhatAReplayWaitsFor) {
  using namespace std::chrono_literals;
  ReplayedCalls calls;
  calls.prepare(at::kCPU);
  calls.launch();
  calls.begin();
  calls.note(call("gather", "u1"));
  calls.note(call("reduce", "u1"));
  calls.end();
  calls.launch();
  EXPECT_EQ(calls.overdue(0ms)->kind, "replay") << "all calls have ended";
  calls.begin();
  EXPECT_EQ(calls.overdue(0ms)->communicator, "gather");
  EXPECT_EQ(calls.overdue(0ms)->unit, "u1");
  calls.end();
  EXPECT_FALSE(calls.overdue(0ms));
  calls.prepare(at::kCPU);
  calls.launch();
  calls.begin();
  EXPECT_EQ(calls.overdue(0ms)->kind, "replay")
      << "the old calls are forgotten";
}

}  // namespace
}  // namespace tessera
