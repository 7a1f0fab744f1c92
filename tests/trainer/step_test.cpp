// train_step on threads as ranks: one answer, however tokens are spread.
#include "tessera/train/train_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/train/build_optimizer.h"
#include "tessera/train/functions.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

using test::kSmallModels;
using Weights = std::map<std::string, at::Tensor>;
using Batches = std::vector<Batch>;

/// For a rank: the micro-batches of a step.
using Source = std::function<Batches(int rank, int step)>;

struct Outcome {
  std::vector<StepResult> steps;
  Weights weights;
};

Weights weights_of(LanguageModel& model) {
  const FullParameters whole(model, Write::discard);
  Weights weights;
  for (const auto& item : model.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

Outcome train(int world_size, const ModelConfig& config, const Source& source,
              const ShardConfig& how = {}, const StepOptions& options = {},
              int steps = 3,
              // Size of steps as of SGD: AdamW's own would turn rounding into
              // signs.
              const OptimizerConfig& optimizer_config = {.lr = 1e-3,
                                                         .eps = 1e-3}) {
  environment::disable_flight_recorder();
  Outcome outcome;
  run_ranks(world_size, [&](const World& world) {
    const auto layout = shard_mesh(how, world);
    const auto mesh = layout.flatten("all");
    auto model = test::sharded(config, layout, how);
    auto optimizer = build_optimizer(*model, optimizer_config);
    if (options.optimizer_step == OptimizerStep::in_backward) {
      let_step_in_backward(*model, *optimizer);
    }
    std::vector<StepResult> results;
    for (int step = 0; step < steps; ++step) {
      results.push_back(train_step(*model, *optimizer,
                                   source(world.rank(), step), mesh, options));
    }
    auto weights = weights_of(*model);
    if (world.rank() == 0) outcome = {results, std::move(weights)};
  });
  return outcome;
}

void expect_same(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t i = 0; i < want.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].tokens, want.steps[i].tokens);
    // fp32 sums in another order.
    EXPECT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-5) << i;
    EXPECT_NEAR(got.steps[i].grad_norm, want.steps[i].grad_norm, 1e-4) << i;
  }
  for (const auto& [name, value] : want.weights) {
    EXPECT_LT((got.weights.at(name) - value).abs().max().item<double>(), 1e-5)
        << name;
  }
}

/// Rows [rank * rows / ranks, ...) of one batch of the step, in `parts`.
Source split(const ModelConfig& config, int ranks, int parts) {
  return [=](int rank, int step) {
    const int64_t rows = 12 / ranks / parts;
    const Batch all = test::random_batch(config, 12, 100 + step);
    Batches batches;
    for (int part = 0; part < parts; ++part) {
      const int64_t first = (rank * parts + part) * rows;
      batches.push_back({all.input.narrow(0, first, rows),
                         all.target.narrow(0, first, rows)});
    }
    return batches;
  };
}

TEST(TrainStep, RanksAndAccumulationDoNotChangeTheUpdate) {
  for (const ModelConfig& config : kSmallModels) {
    const auto one = train(1, config, split(config, 1, 1));
    EXPECT_EQ(one.steps[0].tokens, 12 * config.seq);
    EXPECT_NEAR(one.steps[0].loss, std::log(11.0), 0.5);
    expect_same(train(1, config, split(config, 1, 3)), one);
    expect_same(train(2, config, split(config, 2, 1)), one);
    expect_same(train(3, config, split(config, 3, 2)), one);
    expect_same(train(2, config, split(config, 2, 2),
                      {.strategy = Strategy::replicate}),
                one);
  }
}

/// Steps that clip in a pass of their own, as a user would write them.
Outcome train_by_hand(int world_size, const ModelConfig& config,
                      const Source& source, OptimizerKind kind,
                      const StepOptions& options) {
  Outcome outcome;
  run_ranks(world_size, [&](const World& world) {
    const auto mesh = shard_mesh({}, world).flatten("all");
    auto model = test::sharded(config, mesh);
    auto optimizer = build_optimizer(*model, {.kind = kind, .lr = 1e-2});
    std::vector<StepResult> results;
    for (int step = 0; step < 3; ++step) {
      const Batches batches = source(world.rank(), step);
      results.push_back(read_result(compute_gradients(
          *model, batches, numbers_of_rank(batches, options), mesh, options)));
      const at::Tensor norm =
          clip_grad_norm_(model->parameters(), options.max_norm);
      EXPECT_EQ(norm.item<double>(), results.back().grad_norm);
      optimizer->step();
      optimizer->zero_grad();
    }
    auto weights = weights_of(*model);
    if (world.rank() == 0) outcome = {results, std::move(weights)};
  });
  return outcome;
}

TEST(TrainStep, ClipsToTheBitsOfAPassOfItsOwn) {
  for (const double max_norm : {0.05, 100.0}) {
    for (const auto kind :
         {OptimizerKind::fused_adamw, OptimizerKind::torch_adamw}) {
      for (const auto& [ranks, parts] : {std::pair{1, 1}, {3, 2}}) {
        const ModelConfig& config = kSmallModels[0];
        const Source source = split(config, ranks, parts);
        const StepOptions options{.max_norm = max_norm};
        const auto want = train_by_hand(ranks, config, source, kind, options);
        const auto got = train(ranks, config, source, {}, options, 3,
                               {.kind = kind, .lr = 1e-2});
        for (size_t i = 0; i < want.steps.size(); ++i) {
          EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << i;
          EXPECT_EQ(got.steps[i].grad_norm, want.steps[i].grad_norm) << i;
          EXPECT_EQ(got.steps[i].grad_norm > max_norm, max_norm < 1) << i;
        }
        for (const auto& [name, value] : want.weights) {
          EXPECT_TRUE(torch::equal(got.weights.at(name), value)) << name;
        }
      }
    }
  }
}

TEST(TrainStep, StepsInsideOfBackwardChangeNoBit) {
  const StepOptions after{.max_norm = 0};
  const StepOptions inside{.max_norm = 0,
                           .optimizer_step = OptimizerStep::in_backward};
  for (const ModelConfig& config : kSmallModels) {
    for (const auto& [ranks, parts] : {std::pair{1, 1}, {2, 1}, {2, 3}}) {
      const Source source = split(config, ranks, parts);
      const auto want = train(ranks, config, source, {}, after);
      const auto got = train(ranks, config, source, {}, inside);
      for (size_t i = 0; i < want.steps.size(); ++i) {
        EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << i;
        EXPECT_TRUE(got.steps[i].updated) << i;
      }
      for (const auto& [name, value] : want.weights) {
        EXPECT_TRUE(torch::equal(got.weights.at(name), value)) << name;
      }
    }
  }
}

TEST(TrainStep, BackwardItselfIsTheStepWhenUnitsStepInside) {
  const ModelConfig& config = kSmallModels[0];
  const StepOptions inside{.max_norm = 0,
                           .optimizer_step = OptimizerStep::in_backward};
  run_ranks(2, [&](const World& world) {
    const auto mesh = shard_mesh({}, world).flatten("all");
    auto model = test::sharded(config, mesh);
    auto optimizer = build_optimizer(*model, {});
    let_step_in_backward(*model, *optimizer);
    const Weights before = weights_of(*model);
    const Batches batches = split(config, 2, 1)(world.rank(), 0);
    (void)compute_gradients(*model, batches, numbers_of_rank(batches, inside),
                            mesh, inside);
    const Weights stepped = weights_of(*model);
    optimizer->step();
    const Weights after = weights_of(*model);
    for (const auto& [name, value] : before) {
      EXPECT_FALSE(torch::equal(stepped.at(name), value)) << name;
      EXPECT_TRUE(torch::equal(after.at(name), stepped.at(name))) << name;
    }
    torch::optim::SGD other(model->parameters(), 0.1);
    EXPECT_THROW(let_step_in_backward(*model, other), InvalidArgument);
  });
}

TEST(TrainStep, ALayoutDoesNotChangeTheUpdate) {
  struct Layout {
    int ranks;
    int parts;
    ShardConfig how;
  };
  const std::vector<Layout> layouts = {
      {2, 1, {.replicas = 2}},
      {4, 1, {.replicas = 2, .prefetch = 1}},
      {4, 3, {.reshard = ReshardPolicy::always, .replicas = 2}},
      {4, 1, {.reshard_ranks = 2}},
      {2, 2, {.prefetch = 2}},
      {2, 1, {.offload = Offload::pinned}},
      {4, 1, {.replicas = 2, .offload = Offload::pageable}}};
  for (const ModelConfig& config : kSmallModels) {
    const auto one = train(1, config, split(config, 1, 1));
    for (const Layout& layout : layouts) {
      SCOPED_TRACE(&layout - layouts.data());
      expect_same(train(layout.ranks, config,
                        split(config, layout.ranks, layout.parts), layout.how),
                  one);
    }
  }
}

TEST(TrainStep, Float8GathersRoundTheSameAtAnyNumberOfRanks) {
  const ModelConfig config = kSmallModels[0];
  const ShardConfig rounded = {.gather_dtype = GatherDtype::float8};
  const auto one = train(1, config, split(config, 1, 1), rounded);
  expect_same(train(2, config, split(config, 2, 1), rounded), one);
  const auto exact = train(1, config, split(config, 1, 1));
  // Three bits of mantissa: each weight is off by up to 1/16.
  EXPECT_NE(one.steps[0].loss, exact.steps[0].loss);
  EXPECT_NEAR(one.steps[0].loss, exact.steps[0].loss, 0.05);
}

TEST(TrainStep, ACopyForGathersChangesNoBit) {
  const ModelConfig config = kSmallModels[0];
  ShardConfig how = {.param_dtype = Precision::bfloat16};
  const auto want = train(2, config, split(config, 2, 1), how);
  how.gather_copy = CopyForGathers::kept;
  const auto got = train(2, config, split(config, 2, 1), how);
  ASSERT_EQ(got.steps.size(), want.steps.size());
  for (size_t i = 0; i < got.steps.size(); ++i) {
    EXPECT_EQ(got.steps[i].loss, want.steps[i].loss) << i;
    EXPECT_EQ(got.steps[i].grad_norm, want.steps[i].grad_norm) << i;
  }
}

TEST(TrainStep, TheMeanIsOverTokensHoweverUnevenlyTheyLie) {
  const ModelConfig config = kSmallModels[0];
  const auto masked = [&](int step) {
    Batch batch = test::random_batch(config, 4, 100 + step);
    batch.target.narrow(0, 0, 2).fill_(kNoTarget);  // a rank without a token
    batch.target.narrow(0, 2, 1).narrow(1, 3, 6).fill_(kNoTarget);
    return batch;
  };
  const auto one =
      train(1, config, [&](int, int step) { return Batches{masked(step)}; });
  EXPECT_EQ(one.steps[0].tokens, 3 + 9);
  const auto two = train(2, config, [&](int rank, int step) {
    const Batch all = masked(step);
    return Batches{
        {all.input.narrow(0, 2 * rank, 2), all.target.narrow(0, 2 * rank, 2)}};
  });
  expect_same(two, one);
}

TEST(TrainStep, BfloatComputeStaysCloseToFloat) {
  const ModelConfig config = kSmallModels[0];
  const auto full = train(2, config, split(config, 2, 1));
  const auto mixed = train(2, config, split(config, 2, 1),
                           {.param_dtype = Precision::bfloat16});
  // bfloat16 has 8 bits: 0.4 % of numbers near 2.4.
  EXPECT_NEAR(mixed.steps[0].loss, full.steps[0].loss, 0.02);
  EXPECT_NE(mixed.steps[0].loss, full.steps[0].loss);
  EXPECT_EQ(mixed.weights.at("norm.weight").dtype(), torch::kFloat);
}

TEST(TrainStep, ANonFiniteLossOfOneRankLeavesTheWeightsOfAllAlone) {
  const ModelConfig config = kSmallModels[0];
  run_ranks(2, [&](const World& world) {
    const auto mesh = init_device_mesh(world);
    auto model = test::sharded(config, mesh);
    auto optimizer = build_optimizer(*model, {});
    {
      const FullParameters whole(*model);
      for (auto& item : model->named_parameters()) {
        if (item.key() != "embed_tokens.weight") continue;
        const torch::NoGradGuard no_grad;
        item.value()[3].fill_(std::numeric_limits<float>::infinity());
      }
    }
    const auto before = weights_of(*model);
    // Only rank 1 meets token 3.
    Batch batch = test::random_batch(config, 2, 5);
    batch.input.fill_(world.rank() == 1 ? 3 : 2);
    const auto bad = train_step(*model, *optimizer, {batch}, mesh, {});
    EXPECT_FALSE(bad.updated);
    EXPECT_FALSE(std::isfinite(bad.loss) && std::isfinite(bad.grad_norm));
    for (const auto& [name, value] : weights_of(*model)) {
      EXPECT_TRUE(torch::equal(value, before.at(name))) << name;
    }
    batch.input.fill_(2);
    const auto good = train_step(*model, *optimizer, {batch}, mesh, {});
    EXPECT_TRUE(good.updated);
    EXPECT_TRUE(std::isfinite(good.grad_norm));
  });
}

TEST(TrainStep, AWishOfOneRankToStopIsHeardByAll) {
  const ModelConfig config = kSmallModels[0];
  run_ranks(2, [&](const World& world) {
    const auto mesh = init_device_mesh(world);
    auto model = test::sharded(config, mesh);
    auto optimizer = build_optimizer(*model, {});
    const Batches batches = {test::random_batch(config, 2, world.rank())};
    const auto step = [&](Wish wish) {
      return train_step(*model, *optimizer, batches, mesh, {.wish = wish}).wish;
    };
    EXPECT_EQ(step(Wish::go_on), Wish::go_on);
    EXPECT_EQ(step(world.rank() == 1 ? Wish::stop : Wish::go_on), Wish::stop);
  });
}

TEST(BuildOptimizer, DecaysMatricesAndLeavesVectorsAlone) {
  const ModelConfig config = kSmallModels[1];
  run_ranks(2, [&](const World& world) {
    auto model = test::sharded(config, init_device_mesh(world));
    for (const auto kind :
         {OptimizerKind::fused_adamw, OptimizerKind::torch_adamw}) {
      auto optimizer =
          build_optimizer(*model, {.kind = kind, .weight_decay = 0.3});
      const auto& groups = optimizer->param_groups();
      ASSERT_EQ(groups.size(), 2u);
      const auto decay = [&](size_t i) {
        return static_cast<const torch::optim::AdamWOptions&>(
                   groups[i].options())
            .weight_decay();
      };
      EXPECT_EQ(decay(0), 0.3);
      EXPECT_EQ(decay(1), 0.0);
      for (const auto& p : groups[0].params()) EXPECT_GE(p.dim(), 2);
      for (const auto& p : groups[1].params()) EXPECT_EQ(p.dim(), 1);
    }
  });
}

}  // namespace
}  // namespace tessera::train
