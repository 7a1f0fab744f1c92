// Units of one model on different meshes: experts that only some ranks share.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

class MixedMesh : public DoubleByDefault {};

struct ExpertsImpl : nn::Module {
  nn::Linear before{nullptr}, expert{nullptr}, after{nullptr};
  explicit ExpertsImpl(int which) {
    before = register_module("before", nn::Linear(6, 5));
    expert = register_module("expert", nn::Linear(5, 5));
    after = register_module("after", nn::Linear(5, 3));
    torch::NoGradGuard no_grad;
    expert->weight.add_(which);
  }
  Tensor forward(const Tensor& x) {
    return after(torch::tanh(expert(torch::tanh(before(x)))));
  }
};

std::shared_ptr<ExpertsImpl> make_experts(int which) {
  return std::dynamic_pointer_cast<ExpertsImpl>(
      build([&] { return std::make_shared<ExpertsImpl>(which); }));
}

Tensor loss_of(ExpertsImpl& model, int rank, int step) {
  return square_loss(model.forward(input(rank, step)));
}

// The mean of the gradients of some ranks, each with its own expert.
Tensors mean_gradients(const std::vector<int>& ranks, int step) {
  Tensors sum;
  for (const int rank : ranks) {
    auto model = make_experts(rank / 2);
    loss_of(*model, rank, step).backward();
    for (const auto& [name, gradient] : plain_gradients(*model)) {
      sum[name] = sum.contains(name) ? sum[name] + gradient : gradient;
    }
  }
  for (auto& [name, gradient] : sum) {
    gradient = gradient / static_cast<double>(ranks.size());
  }
  return sum;
}

void expect_part(nn::Module& model, const std::string& name,
                 const Tensors& want) {
  const Tensor shard = model.named_parameters()[name];
  ASSERT_TRUE(shard.grad().defined()) << name;
  if (spread_of(shard)->boxes.empty()) return;
  const Box& box = spread_of(shard)->boxes[0];
  expect_close(local(shard.grad()),
               want.at(name).narrow(0, box.offsets[0], box.lengths[0]), name);
}

TEST_F(MixedMesh, ExpertsAreAveragedOverTheirOwnRanksOnly) {
  on_ranks(4, [&](const World& world) {
    const DeviceMesh mesh =
        init_device_mesh(world, {.shape = {2, 2}, .axes = {"ep", "dp"}});
    const int which = static_cast<int>(mesh.coordinate("ep"));
    auto model = make_experts(which);
    fully_shard(*model->before, options_for(mesh.flatten("all")));
    fully_shard(*model->expert, options_for(mesh["dp"]));
    fully_shard(*model, options_for(mesh.flatten("all")));
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      loss_of(*model, world.rank(), step).backward();
      const Tensors of_all = mean_gradients({0, 1, 2, 3}, step);
      const Tensors of_mine = mean_gradients({2 * which, 2 * which + 1}, step);
      expect_part(*model, "before.weight", of_all);
      expect_part(*model, "after.weight", of_all);
      expect_part(*model, "expert.weight", of_mine);
      expect_nothing_gathered(*model, "after backward");
    }
  });
}

// Ranks of one expert agree among themselves: the other's use does not matter.
TEST_F(MixedMesh, AnExpertThatNobodyUsesGetsNoGradient) {
  on_ranks(4, [&](const World& world) {
    const DeviceMesh mesh =
        init_device_mesh(world, {.shape = {2, 2}, .axes = {"ep", "dp"}});
    auto model = make_experts(0);
    fully_shard(*model->expert, options_for(mesh["dp"]));
    fully_shard(*model, options_for(mesh.flatten("all")));
    const bool uses = mesh.coordinate("ep") == 0;
    Tensor middle = torch::tanh(model->before(input(0, 0)));
    if (uses) middle = model->expert(middle);
    model->after(middle).sum().backward();
    EXPECT_EQ(model->named_parameters()["expert.weight"].grad().defined(),
              uses);
    EXPECT_TRUE(model->named_parameters()["after.weight"].grad().defined());
  });
}

}  // namespace
}  // namespace tessera::test
