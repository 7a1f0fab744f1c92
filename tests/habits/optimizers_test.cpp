// Stock optimizers on shards, and copies that a step makes stale.
#include <sstream>

#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tests/support/net.h"
#include "tests/support/warm_reader.h"

namespace tessera::test {
namespace {

using Optimizers = DoubleByDefault;

template <class Kind, class Options>
MakeOptimizer maker(Options options) {
  return [options](std::vector<Tensor> parameters) -> Optimizer {
    return std::make_unique<Kind>(std::move(parameters), options);
  };
}

const std::vector<std::pair<const char*, MakeOptimizer>>& all_elementwise() {
  using namespace torch::optim;
  static const std::vector<std::pair<const char*, MakeOptimizer>> all = {
      {"SGD", maker<SGD>(SGDOptions(0.1))},
      {"SGD with momentum",
       maker<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.1))},
      {"SGD with Nesterov",
       maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", maker<Adam>(AdamOptions(0.1))},
      {"Adam with amsgrad",
       maker<Adam>(AdamOptions(0.1).amsgrad(true).weight_decay(0.1))},
      {"AdamW", maker<AdamW>(AdamWOptions(0.1))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.1))},
      {"RMSprop", maker<RMSprop>(RMSpropOptions(0.1))},
      {"RMSprop, centered",
       maker<RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.9))},
  };
  return all;
}

// 1e-8: they divide by roots of small squares.
TEST_F(Optimizers, EveryElementwiseOneEqualsOneProcessOverFiveSteps) {
  for (const auto& [name, optimizer] : all_elementwise()) {
    SCOPED_TRACE(name);
    expect_agreement(make_net, plain_loss,
                     {.units = kUnits,
                      .steps = 5,
                      .optimizer = optimizer,
                      .tolerance = 1e-8});
  }
}

TEST_F(Optimizers, LbfgsIsRefusedByName) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    torch::optim::LBFGS lbfgs(model->parameters());
    const std::string message = message_of([&] {
      lbfgs.step([&] {
        lbfgs.zero_grad();
        const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
        loss.backward();
        return loss;
      });
    });
    EXPECT_TRUE(says(message, "LBFGS"));
    EXPECT_TRUE(says(message, "parameter 'a."));
  });
}

TEST_F(Optimizers, OneMadeBeforeShardingIsNamed) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_net);
    const Optimizer early = make_sgd(model->parameters());
    const std::string message = message_of(
        [&] { shard(*model, options_for(init_device_mesh(world)), kUnits); });
    EXPECT_TRUE(says(message, "an optimizer made before fully_shard"));
    EXPECT_TRUE(says(message, "parameter 'gain'"));
  });
}

// One that holds a part of the parameters cannot be told from a user's handles
// when the model is sharded; its first step is refused.
TEST_F(Optimizers, OneOverMembersIsNamedWhenItSteps) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_net);
    const auto& f = as_net(*model).a->f;
    const Optimizer early = make_sgd({f->weight, f->bias});
    shard(*model, options_for(init_device_mesh(world)), kUnits);
    const Optimizer late = make_sgd({f->weight, f->bias});
    AdamW adamw({f->weight, f->bias}, 0.1);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    for (const auto& step : std::vector<std::function<void()>>{
             [&] { early->step(); }, [&] { late->step(); },
             [&] { adamw.step(); },
             [&] { (void)clip_grad_norm_({f->weight}, 1.0); }}) {
      const std::string message = message_of(step);
      EXPECT_TRUE(says(message, "'a.f.weight'"));
      EXPECT_TRUE(says(message, "optimizer"));
    }
  });
}

TEST_F(Optimizers, SaveAndLoadTheirState) {
  warm_torch_reader();
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    torch::optim::Adam adam(model->parameters(), 0.1);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    adam.step();
    std::stringstream stream;
    torch::save(adam, stream);
    const Tensors start = full_values(*model);

    adam.zero_grad();
    plain_loss(*model, {world.rank(), 1, 1}).backward();
    adam.step();
    const Tensors want = full_values(*model);

    {
      FullParameters full(*model);
      torch::NoGradGuard no_grad;
      for (auto& p : model->named_parameters())
        p.value().copy_(start.at(p.key()));
    }
    torch::optim::Adam again(model->parameters(), 0.5);
    torch::load(again, stream);
    again.zero_grad();
    plain_loss(*model, {world.rank(), 1, 1}).backward();
    again.step();
    expect_close(full_values(*model), want, "value");
  });
}

// Stale copies ----------------------------------------------------------------

// The root stays gathered after an evaluation; `change` must make it stale.
void expect_fresh_evaluation(int world_size, const MakeOptimizer& optimizer,
                             const char* name) {
  const auto run = [&](nn::Module& m, int ranks, int first_rank) {
    const Optimizer made = optimizer(m.parameters());
    const int count = is_fully_sharded(m) ? 1 : ranks;
    for (int rank = first_rank; rank < first_rank + count; ++rank) {
      (plain_loss(m, {rank, 0, 1}) / count).backward();
    }
    {
      torch::NoGradGuard no_grad;
      plain_loss(m, {0, 7, 1});
    }
    made->step();
    torch::NoGradGuard no_grad;
    return plain_loss(m, {0, 7, 1}).item<double>();
  };
  Model plain = build(make_net);
  const double want = run(*plain, world_size, 0);
  on_ranks(world_size, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    EXPECT_NEAR(run(*model, world_size, world.rank()), want, 1e-9) << name;
  });
}

TEST_F(Optimizers, EvaluateStepEvaluateSeesTheNewWeights) {
  for (const auto& [name, optimizer] : all_elementwise()) {
    expect_fresh_evaluation(2, optimizer, name);
  }
}

TEST_F(Optimizers, ARankWithEmptyShardsGathersAgainWhenTheOthersDo) {
  expect_fresh_evaluation(4, make_sgd, "SGD");
}

void expect_seen_between_evaluations(
    int world_size, const Make& make,
    const std::function<void(nn::Module&)>& change) {
  const auto run = [&](nn::Module& m) {
    c10::InferenceMode inference;
    plain_loss(m, {0, 1, 1});
    change(m);
    return plain_loss(m, {0, 1, 1}).item<double>();
  };
  Model plain = build(make);
  const double want = run(*plain);
  on_ranks(world_size, [&](const World& world) {
    Model model = build_sharded(world, make, kUnits);
    EXPECT_NEAR(run(*model), want, 1e-9);
  });
}

TEST_F(Optimizers, DataOfParametersWrittenBetweenEvaluations) {
  expect_seen_between_evaluations(2, make_net, [](nn::Module& m) {
    for (const Tensor& p : m.parameters()) p.data().mul_(0.9);
  });
}

// A head of three rows: rank 3 owns nothing of the root.
Model make_small_head() {
  auto net = std::make_shared<NetImpl>();
  net->c =
      net->replace_module("c", nn::Linear(nn::LinearOptions(8, 3).bias(false)));
  return net;
}

TEST_F(Optimizers, DataOfParametersWrittenWhereTheyAreNotEmpty) {
  expect_seen_between_evaluations(4, make_small_head, [](nn::Module& m) {
    for (const Tensor& p : m.parameters()) {
      if (p.numel() > 0) p.data().mul_(0.9);
    }
  });
}

TEST_F(Optimizers, AMovingAverageByMembersIsWholeAndByParametersIsAPart) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor want = full_values(*model)["a.f.weight"];
    torch::NoGradGuard no_grad;
    Tensor average = as_net(*model).a->f->weight.detach().clone() * 0.5;
    average.lerp_(as_net(*model).a->f->weight, 0.5);
    expect_close(average, want * 0.75, "average");
    for (const Tensor& p : model->parameters()) {
      EXPECT_EQ(p.clone().mul_(0.9).add_(p, 0.1).sizes(), p.sizes());
    }
  });
}

}  // namespace
}  // namespace tessera::test
