// What backward has of other units: with BackwardOverlap::tight their gathers
// start late, and nothing else changes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/support/net.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class Overlap : public DoubleByDefault {};

constexpr int kLayers = 5;

constexpr int kStacks = 7;

/// Units of five layers each, "0" to "6".
struct StacksImpl : nn::Module {
  std::vector<nn::Sequential> stacks;
  StacksImpl() {
    for (int i = 0; i < kStacks; ++i) {
      nn::Sequential stack;
      for (int j = 0; j < kLayers; ++j) stack->push_back(nn::Linear(6, 6));
      stacks.push_back(register_module(std::to_string(i), stack));
    }
  }
};
TORCH_MODULE(Stacks);

Stacks sharded(const World& world, BackwardOverlap overlap) {
  Stacks model;
  for (const Tensor& parameter : model->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.copy_(noise(1, parameter.sizes()) / 4);
  }
  const FullyShardOptions options{.mesh = init_device_mesh(world),
                                  .reshard_after_forward = Reshard::always,
                                  .prefetch = 1,
                                  .backward_overlap = overlap,
                                  .debug = Debug::poison_memory};
  for (auto& stack : model->stacks) fully_shard(*stack, options);
  fully_shard(*model, options);
  return model;
}

/// Whether unit `stack - 1` is gathered when the gradient comes of the outputs
/// of `stack`, from its last layer to its input.
std::string gathered_in_backward(Stacks& model, int rank, int stack) {
  std::string seen;
  const auto watch = [&](const Tensor& output) {
    output.register_hook([&](const Tensor&) {
      const auto& below = unit_named(*model, std::to_string(stack - 1));
      seen += below.gathered() ? 'x' : '.';
    });
  };
  Tensor hidden = input(rank, 1);
  for (int i = 0; i < kStacks; ++i) {
    if (i == stack) watch(hidden);
    for (auto& layer : *model->stacks[i]) {
      hidden = layer.forward(hidden);
      if (i == stack) watch(hidden);
    }
  }
  square_loss(hidden).backward();
  return seen;
}

TEST_F(Overlap, ATightOneStartsTheLastGathersWithTheLastFifthOfTheReads) {
  on_ranks(2, [&](const World& world) {
    for (const auto overlap : {BackwardOverlap::full, BackwardOverlap::tight}) {
      Stacks model = sharded(world, overlap);
      const bool tight = overlap == BackwardOverlap::tight;
      EXPECT_EQ(gathered_in_backward(model, world.rank(), 1), "......")
          << "no order is known";
      for (int step = 0; step < 2; ++step) {
        EXPECT_EQ(gathered_in_backward(model, world.rank(), 1),
                  tight ? ".....x" : ".xxxxx");
        EXPECT_EQ(gathered_in_backward(model, world.rank(), 4), ".xxxxx")
            << "before the last third";
        for (const auto& unit : units_below(*model)) {
          EXPECT_FALSE(unit->gathered()) << unit->name();
        }
      }
    }
  });
}

/// A backward in which this stack reads fewer layers on rank 1, so that it is
/// not complete there, and the one below, which was to come next, is left out
/// on all ranks; then one with all of them. The gradients of both.
Tensors gradients_of_two_passes(const World& world, BackwardOverlap overlap,
                                int fewer) {
  Stacks model = sharded(world, overlap);
  for (int step = 0; step < 2; ++step) {
    (void)gathered_in_backward(model, world.rank(), 1);
  }
  for (const Tensor& parameter : model->parameters()) {
    parameter.mutable_grad().reset();
  }
  Tensor hidden = input(world.rank(), 1);
  for (int i = 0; i < kStacks; ++i) {
    if (i == fewer - 1) continue;
    int layers = 0;
    for (auto& layer : *model->stacks[i]) {
      const bool left_out = i == fewer && world.rank() == 1 && layers++ < 2;
      if (!left_out) hidden = layer.forward(hidden);
    }
  }
  square_loss(hidden).backward();
  (void)gathered_in_backward(model, world.rank(), 1);
  Tensors gradients;
  for (const auto& item : model->named_parameters()) {
    gradients[item.key()] = local(item.value().grad()).clone();
  }
  return gradients;
}

// Otherwise one rank alone would gather what the others do not.
TEST_F(Overlap, LateGathersStartOnAllRanksWhateverTheyRead) {
  on_ranks(2, [&](const World& world) {
    for (const int fewer : {1, 2}) {
      using enum BackwardOverlap;
      const auto want = gradients_of_two_passes(world, full, fewer);
      const auto got = gradients_of_two_passes(world, tight, fewer);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, gradient] : want) {
        EXPECT_TRUE(got.at(name).equal(gradient)) << name << " " << fewer;
      }
    }
  });
}

}  // namespace
}  // namespace tessera::test
