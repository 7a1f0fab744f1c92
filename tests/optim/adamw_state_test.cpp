// The state of tessera::AdamW, saved and loaded, and what it refuses.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"
#include "tests/optim/adamw_support.h"

namespace tessera {
namespace {

using namespace testing;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;

// Continues from a saved state, and must arrive where the other one arrives.
template <class From, class To>
void expect_continues(From& from, const Tensors& from_parameters, To& to,
                      const Tensors& to_parameters) {
  std::stringstream file;
  torch::serialize::OutputArchive out;
  from.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  to.load(in);
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < from_parameters.size(); ++i) {
    local(to_parameters[i]).copy_(local(from_parameters[i]));
    if (!from_parameters[i].grad().defined()) continue;
    to_parameters[i].mutable_grad() = local(from_parameters[i].grad()).clone();
  }
  for (int step = 0; step < 3; ++step) {
    from.step();
    to.step();
  }
  for (size_t i = 0; i < from_parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(local(to_parameters[i]), local(from_parameters[i]),
                             1e-12, 1e-12))
        << i;
  }
}

TEST(AdamW, SavesAndLoadsTheStockFormat) {
  for (bool amsgrad : {false, true}) {
    Tensors full = random_tensors();
    TestShards own(full);
    AdamW optimizer(two_groups(own.shards(), amsgrad));
    for (int step = 0; step < 5; ++step) {
      own.set_gradients(random_gradients(full, step));
      optimizer.step();
    }
    // Other options, so that loading has to bring these.
    Tensors plain = clones(full);
    torch::optim::AdamW stock(two_groups(plain, !amsgrad));
    expect_continues(optimizer, own.shards(), stock, plain);
    TestShards again(full);
    AdamW loaded(two_groups(again.shards(), !amsgrad));
    expect_continues(stock, plain, loaded, again.shards());
    TestShards third(full);
    AdamW own_again(two_groups(third.shards(), amsgrad));
    expect_continues(loaded, again.shards(), own_again, third.shards());
  }
}

TEST(AdamW, StateViewsHaveTheSizesOfTheShard) {
  Tensors full = {torch::randn({5, 3}), torch::randn({1, 3})};
  TestShards own(full, {.rank = 1, .num_ranks = 2});
  AdamW optimizer(own.shards(), AdamWOptions().amsgrad(true));
  EXPECT_FALSE(optimizer.state_of(own.shards()[0]).step.defined());
  own.set_gradients(full);
  optimizer.step();
  for (const auto& shard : own.shards()) {
    const ParameterState state = optimizer.state_of(shard);
    EXPECT_EQ(state.step.item<int>(), 1);
    EXPECT_EQ(state.exp_avg.sizes(), shard.sizes());
    EXPECT_EQ(state.exp_avg_sq.sizes(), shard.sizes());
    EXPECT_EQ(state.max_exp_avg_sq.sizes(), shard.sizes());
  }
  EXPECT_TRUE(at::allclose(optimizer.state_of(own.shards()[0]).exp_avg,
                           0.1 * own.part_of(full[0])));
}

TEST(AdamW, RefusesStateOfOtherSizesAndForeignParameters) {
  Tensors own = random_tensors();
  AdamW optimizer(own);
  set_gradients(own, own);
  optimizer.step();
  EXPECT_THROW(optimizer.set_state_of(own[0], optimizer.state_of(own[1])),
               InvalidArgument);
  EXPECT_THROW(optimizer.set_state_of(own[0], {}), InvalidArgument);
  EXPECT_THROW(
      optimizer.set_state_of(torch::ones({2}), optimizer.state_of(own[1])),
      InvalidArgument);
}

TEST(AdamW, RefusesOptionsThatCannotBeMeant) {
  Tensors p = {torch::ones({2}).set_requires_grad(true)};
  EXPECT_THROW(AdamW(p, AdamWOptions(-1)), InvalidArgument);
  EXPECT_THROW(AdamW(p, AdamWOptions(std::nan(""))), InvalidArgument);
  EXPECT_THROW(AdamW(p, AdamWOptions().eps(-1)), InvalidArgument);
  EXPECT_THROW(AdamW(p, AdamWOptions().weight_decay(-1)), InvalidArgument);
  EXPECT_THROW(AdamW(p, AdamWOptions().betas({0.9, 1.0})), InvalidArgument);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(p, std::make_unique<torch::optim::SGDOptions>(0.1));
  EXPECT_THROW(AdamW{groups}, InvalidArgument);
}

TEST(AdamW, RefusesSparseGradientsAndComplexParameters) {
  at::Tensor p = torch::ones({4}).set_requires_grad(true);
  AdamW optimizer(Tensors{p});
  p.mutable_grad() = torch::ones({4}).to_sparse();
  EXPECT_THROW(optimizer.step(), Unsupported);
  at::Tensor c = torch::ones({4}, at::kComplexFloat).set_requires_grad(true);
  AdamW complex_optimizer(Tensors{c});
  c.mutable_grad() = torch::ones({4}, at::kComplexFloat);
  EXPECT_THROW(complex_optimizer.step(), Unsupported);
}

TEST(AdamW, RefusesAParameterThatChangedAfterItsFirstStep) {
  at::Tensor p = torch::ones({4}).set_requires_grad(true);
  AdamW optimizer(Tensors{p});
  p.mutable_grad() = torch::ones({4});
  optimizer.step();
  p.mutable_grad().reset();
  p.set_data(torch::ones({4}, at::kDouble));
  p.mutable_grad() = torch::ones({4}, at::kDouble);
  EXPECT_THROW(optimizer.step(), InvalidState);
}

TEST(AdamW, RefusesAParameterWhoseStridesChangedAfterItsFirstStep) {
  at::Tensor p = torch::ones({2, 3}).set_requires_grad(true);
  AdamW optimizer(Tensors{p});
  p.mutable_grad() = torch::ones({2, 3});
  optimizer.step();
  p.set_data(torch::ones({3, 2}).t());
  EXPECT_THROW(optimizer.step(), InvalidState);
}

TEST(AdamW, StepsOnlyWhereSkipIsNotOne) {
  Tensors full = random_tensors(at::kFloat);
  TestShards own(full), other(full);
  AdamW optimizer(two_groups(own.shards(), false));
  AdamW steady(two_groups(other.shards(), false));
  for (int step = 0; step < 6; ++step) {
    const Tensors gradients = random_gradients(full, 0);
    own.set_gradients(gradients);
    optimizer.step_unless(at::scalar_tensor(step % 3 == 2, at::kDouble));
    if (step % 3 == 2) continue;
    other.set_gradients(gradients);
    steady.step();
  }
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_TRUE(at::equal(local(own.shards()[i]), local(other.shards()[i])))
        << i;
  }
  EXPECT_EQ(optimizer.state_of(own.shards()[0]).step.item<double>(), 4);
}

TEST(AdamW, SaysWhenItsStateIsInOtherTensors) {
  Tensors full = random_tensors();
  TestShards own(full);
  AdamW optimizer(two_groups(own.shards(), false));
  own.set_gradients(random_gradients(full, 0));
  optimizer.step();
  const uint64_t first = optimizer.state_version();
  own.set_gradients(random_gradients(full, 0));
  optimizer.step();
  EXPECT_EQ(optimizer.state_version(), first);
  own.set_gradients(random_gradients(full, 1));  // some come late, some part
  optimizer.step();
  const uint64_t second = optimizer.state_version();
  EXPECT_GT(second, first);
  optimizer.set_state_of(own.shards()[0], optimizer.state_of(own.shards()[0]));
  EXPECT_GT(optimizer.state_version(), second);
}

TEST(DeviceRates, KeepOneTensorForEachGroupAndDevice) {
  DeviceRates rates;
  const at::Tensor first = rates.of(0, at::kCPU, 0.5);
  const at::Tensor second = rates.of(1, at::kCPU, 0.25);
  rates.set(0, 0.125);
  EXPECT_EQ(first.item<float>(), 0.125f);
  EXPECT_EQ(second.item<float>(), 0.25f);
  EXPECT_TRUE(rates.of(0, at::kCPU, 0.75).is_same(first));
  EXPECT_EQ(first.item<float>(), 0.75f);
}

}  // namespace
}  // namespace tessera
