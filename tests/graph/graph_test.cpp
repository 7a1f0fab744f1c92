// What of captured steps can be tested without a GPU; the rest is
// tests/device/graph.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
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

}  // namespace
}  // namespace tessera
