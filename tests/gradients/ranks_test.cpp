// GradScaler over ranks: one decision for all of them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "tessera/comm/collective_log.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/grad_scaler.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<int> kWorldSizes = {1, 2, 3};

Model sharded_net(const World& world, const MixedPrecisionPolicy& policy) {
  Model model = build(make_net);
  auto options = options_for(init_device_mesh(world));
  options.mp_policy = policy;
  shard(*model, options, kUnits);
  return model;
}

/// This rank's part of the weights.
std::vector<Tensor> parts(nn::Module& model) {
  std::vector<Tensor> values;
  for (const Tensor& p : model.parameters()) values.push_back(local(p).clone());
  return values;
}

void expect_equal(const std::vector<Tensor>& got,
                  const std::vector<Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(want[i])) << what << ", parameter " << i;
  }
}

/// Whether all ranks have said the same.
bool all_say(const World& world, double mine) {
  for (const auto& numbers : all_ranks(world, {mine})) {
    if (numbers[0] != mine) return false;
  }
  return true;
}

const std::vector<MakeOptimizer> kOptimizers = {
    make_sgd,
    [](std::vector<Tensor> parameters) -> Optimizer {
      return std::make_unique<torch::optim::Adam>(
          parameters, torch::optim::AdamOptions(0.01));
    },
    [](std::vector<Tensor> parameters) -> Optimizer {
      return std::make_unique<AdamW>(parameters,
                                     torch::optim::AdamWOptions(0.01));
    }};

// A scale that is a power of two changes no bit, unless numbers run out.
TEST(GradScalerOverRanks, InSinglePrecisionItChangesNoBit) {
  for (const int world_size : kWorldSizes) {
    on_ranks(world_size, [](const World& world) {
      for (const auto& make_optimizer : kOptimizers) {
        Model plain = sharded_net(world, {});
        Model scaled = sharded_net(world, {});
        const auto plain_optimizer = make_optimizer(plain->parameters());
        const auto scaled_optimizer = make_optimizer(scaled->parameters());
        GradScaler scaler({.init_scale = 64, .growth_interval = 2});
        for (int step = 0; step < 4; ++step) {
          const Tensor x = input(world.rank(), step).to(torch::kFloat);
          square_loss(as_net(*plain).forward(x)).backward();
          scaler.scale(square_loss(as_net(*scaled).forward(x))).backward();
          scaler.unscale_(*scaled_optimizer);
          const Tensor norm = clip_grad_norm_(scaled->parameters(), 0.1);
          EXPECT_TRUE(norm.equal(clip_grad_norm_(plain->parameters(), 0.1)));
          plain_optimizer->step();
          EXPECT_TRUE(scaler.step(*scaled_optimizer));
          scaler.update();
          plain_optimizer->zero_grad();
          scaled_optimizer->zero_grad();
        }
        EXPECT_EQ(scaler.get_scale(), 256);
        expect_equal(parts(*scaled), parts(*plain), "scaled");
      }
    });
  }
}

// Its gradients are about 1e-10; fp16 ends at 6e-8.
Tensor tiny_loss(nn::Module& model, int rank, int step) {
  return square_loss(as_net(model).forward(input(rank, step)).to(at::kFloat)) *
         1e-9;
}

TEST(GradScalerOverRanks, KeepsGradientsOfHalfPrecisionFromBecomingZero) {
  on_ranks(2, [](const World& world) {
    Model model = sharded_net(world, {.param_dtype = torch::kHalf});
    Model full = sharded_net(world, {});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    GradScaler scaler({.init_scale = 1 << 30});
    square_loss(as_net(*full).forward(input(world.rank(), 0).to(torch::kFloat)))
        .backward();
    scaler.scale(tiny_loss(*model, world.rank(), 0)).backward();
    scaler.unscale_(optimizer);
    const auto wanted = full->parameters();
    const auto got = model->parameters();
    for (size_t i = 0; i < got.size(); ++i) {
      if (!wanted[i].grad().defined()) continue;
      // fp16 has 11 bits: 5e-4 of about 0.1, for each of a few operators.
      expect_close(local(got[i].grad()) * 1e9, local(wanted[i].grad()),
                   "gradient", 1e-3);
    }
    optimizer.zero_grad();
    tiny_loss(*model, world.rank(), 0).backward();
    EXPECT_EQ(get_total_norm(model->parameters()).item<double>(), 0);
  });
}

/// Trains in fp16; at step 1 one rank meets an infinity, by `spoil`.
template <class Spoil>
void expect_all_ranks_skip(const Loss& loss, const Spoil& spoil) {
  for (const int world_size : kWorldSizes) {
    on_ranks(world_size, [&](const World& world) {
      for (const auto& make_optimizer : kOptimizers) {
        Model model = sharded_net(world, {.param_dtype = torch::kHalf});
        const auto optimizer = make_optimizer(model->parameters());
        GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
        std::vector<double> scales;
        for (int step = 0; step < 4; ++step) {
          const auto before = parts(*model);
          const Tensor own = loss(*model, {world.rank(), step, 1});
          scaler.scale(own).backward();
          if (step == 1 && world.rank() == world.size() - 1) spoil(*model);
          scaler.unscale_(*optimizer);
          clip_grad_norm_(model->parameters(), 1.0);
          const bool stepped = scaler.step(*optimizer);
          scaler.update();
          optimizer->zero_grad();
          EXPECT_EQ(stepped, step != 1);
          EXPECT_TRUE(all_say(world, stepped));
          if (!stepped) expect_equal(parts(*model), before, "skipped");
          scales.push_back(scaler.get_scale());
        }
        EXPECT_EQ(scales, std::vector<double>({1024, 512, 512, 1024}));
        for (const Tensor& part : parts(*model)) {
          EXPECT_TRUE(part.isfinite().all().item<bool>());
        }
      }
    });
  }
}

Tensor half_loss(nn::Module& module, const Turn& turn) {
  return square_loss(as_net(module).forward(input(turn)).to(at::kFloat));
}

void spoil_one_shard(nn::Module& model) {
  for (const Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined() || parameter.numel() == 0) continue;
    local(parameter.grad()).view({-1})[0].fill_(kInfinity);
    return;
  }
  FAIL() << "this rank has no shard";
}

TEST(GradScalerOverRanks, AllSkipWhenOneRanksShardOverflows) {
  expect_all_ranks_skip(half_loss, spoil_one_shard);
}

TEST(GradScalerOverRanks, AllSkipWhenOneRanksBackwardOverflows) {
  const Loss loss = [](nn::Module& module, const Turn& turn) {
    const Tensor own = half_loss(module, turn);
    // Beyond 65504, the largest of fp16.
    return turn.step == 1 && turn.rank == 0 ? own * 1e9 : own;
  };
  expect_all_ranks_skip(loss, [](nn::Module&) {});
}

TEST(GradScalerOverRanks, AsksPeersOnceForEachOptimizer) {
  on_ranks(2, [](const World& world) {
    Model model = sharded_net(world, {});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    GradScaler scaler;
    const Tensor x = input(world.rank(), 0).to(torch::kFloat);
    scaler.scale(square_loss(as_net(*model).forward(x))).backward();
    const auto before = world.log().last().sequence;
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(world.log().last().sequence, before + 1);
  });
}

TEST(GradScalerOverRanks, WhatOneReplicaFindsAllReplicasKnow) {
  on_ranks(4, [](const World& world) {
    Model model = build(make_net);
    auto options = options_for(init_device_mesh(
        world, {.shape = {2, 2}, .axes = {"replicate", "shard"}}));
    shard(*model, options, kUnits);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    GradScaler scaler;
    const Tensor x = input(world.rank(), 0).to(torch::kFloat);
    scaler.scale(square_loss(as_net(*model).forward(x))).backward();
    if (world.rank() == 3) spoil_one_shard(*model);
    EXPECT_FALSE(scaler.step(optimizer));
  });
}

TEST(GradScalerOverRanks, ARankWithoutElementsTakesPart) {
  on_ranks(3, [](const World& world) {
    // One row: ranks 1 and 2 have none.
    nn::Linear model(4, 1);
    {
      torch::NoGradGuard no_grad;
      for (Tensor& parameter : model->parameters()) parameter.fill_(0.5);
    }
    fully_shard(*model, options_for(init_device_mesh(world)));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    GradScaler scaler({.init_scale = 4});
    for (const double x : {1.0, kInfinity, 1.0}) {
      scaler.scale(model(torch::full({2, 4}, x)).sum()).backward();
      EXPECT_EQ(scaler.step(optimizer), x == 1.0);
      scaler.update();
      EXPECT_TRUE(all_say(world, scaler.get_scale()));
      optimizer.zero_grad();
    }
  });
}

}  // namespace
}  // namespace tessera::test
