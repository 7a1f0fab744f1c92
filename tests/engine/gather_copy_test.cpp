// Shards kept in the compute dtype, too: the same numbers, whoever writes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/float8_gather.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/shard/unit.h"
#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

struct TwoLayersImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr};
  TwoLayersImpl() {
    a = register_module("a", nn::Linear(5, 7));
    b = register_module("b", nn::Linear(7, 3));
  }
  Tensor loss(const Tensor& x) {
    return b(torch::tanh(a(x))).to(torch::kFloat).square().mean();
  }
};
TORCH_MODULE(TwoLayers);

TwoLayers two_layers(const World& world, GatherCopy gather_copy) {
  TwoLayers model;  // ranks are threads, which share one generator
  {
    const torch::NoGradGuard no_grad;
    uint64_t seed = 1;
    for (const Tensor& parameter : model->parameters()) {
      parameter.copy_(noise(seed++, parameter.sizes()) * 0.5);
    }
  }
  const FullyShardOptions how{.mesh = init_device_mesh(world),
                              .mp_policy = {.param_dtype = torch::kBFloat16,
                                            .reduce_dtype = torch::kFloat},
                              .gather_copy = gather_copy,
                              .debug = Debug::poison_memory};
  fully_shard(*model->a, how);
  fully_shard(*model->b, how);
  fully_shard(*model, how);
  return model;
}

Tensor batch(int rank, int step) {
  return noise(100 * (step + 1) + rank, {4, 5}).to(torch::kFloat);
}

std::vector<std::shared_ptr<FlatMaster>> masters_of(nn::Module& model) {
  std::vector<std::shared_ptr<FlatMaster>> masters;
  for (const auto& unit : units_below(model)) {
    for (const auto& group : unit->groups()) masters.push_back(group->master());
  }
  return masters;
}

/// What a writer does to the model at the end of a step.
struct Writer {
  std::string name;
  std::function<std::function<void(int step)>(TwoLayers&)> make;
  bool keeps_copies = false;
};

std::vector<Tensor> weights_only(const TwoLayers& model) {
  std::vector<Tensor> weights;
  for (const Tensor& parameter : model->parameters()) {
    if (spread_of(parameter)->global_sizes.size() > 1)
      weights.push_back(parameter);
  }
  return weights;
}

template <class Optimizer, class Options>
auto stepping(Options options) {
  return [options](TwoLayers& model) {
    auto optimizer = std::make_shared<Optimizer>(model->parameters(), options);
    return [optimizer](int) {
      optimizer->step();
      optimizer->zero_grad();
    };
  };
}

std::function<void(int)> in_two_groups(TwoLayers& model) {
  std::vector<Tensor> weights = weights_only(model);
  std::vector<Tensor> biases;
  for (const Tensor& parameter : model->parameters()) {
    const bool is_weight = std::any_of(
        weights.begin(), weights.end(),
        [&](const Tensor& weight) { return weight.is_same(parameter); });
    if (!is_weight) biases.push_back(parameter);
  }
  auto optimizer = std::make_shared<AdamW>(
      std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup(weights),
          torch::optim::OptimizerParamGroup(biases)},
      torch::optim::AdamWOptions(0.05));
  return [optimizer](int) {
    optimizer->step();
    optimizer->zero_grad();
  };
}

std::function<void(int)> clipping(TwoLayers& model) {
  auto optimizer = std::make_shared<AdamW>(model->parameters(),
                                           torch::optim::AdamWOptions(0.05));
  return [optimizer, model](int) {
    optimizer->step_clipped(get_total_norm(model->parameters()), 0.01);
    optimizer->zero_grad();
  };
}

std::function<void(int)> clipping_apart(TwoLayers& model) {
  auto optimizer = std::make_shared<AdamW>(model->parameters(),
                                           torch::optim::AdamWOptions(0.05));
  return [optimizer, model](int) {
    (void)clip_grad_norm_(model->parameters(), 0.01);
    optimizer->step();
    optimizer->zero_grad();
  };
}

std::function<void(int)> loading(TwoLayers& model) {
  const auto step = clipping(model);
  return [step, model](int number) mutable {
    step(number);
    if (number != 1) return;
    const FullParameters scope(*model);
    const torch::NoGradGuard no_grad;
    model->a->weight.fill_(0.25);
  };
}

std::function<void(int)> writing_shards(TwoLayers& model) {
  const auto step = clipping(model);
  return [step, model](int number) {
    step(number);
    const torch::NoGradGuard no_grad;
    for (const Tensor& parameter : model->parameters()) {
      local(parameter).mul_(0.9);
    }
  };
}

struct Trained {
  std::vector<Tensor> losses, shards;
};

Trained train(const World& world, const Writer& writer,
              GatherCopy gather_copy) {
  TwoLayers model = two_layers(world, gather_copy);
  const auto write = writer.make(model);
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    const Tensor loss = model->loss(batch(world.rank(), step));
    loss.backward();
    trained.losses.push_back(loss.detach());
    write(step);
    if (gather_copy == GatherCopy::none || !writer.keeps_copies) continue;
    for (const auto& master : masters_of(*model)) {
      if (!master->copy.defined()) continue;  // the root has no parameters
      EXPECT_TRUE(master->copy_is_current()) << writer.name;
      EXPECT_TRUE(master->copy.equal(master->data.to(torch::kBFloat16)))
          << writer.name;
    }
  }
  for (const Tensor& parameter : model->parameters()) {
    trained.shards.push_back(local(parameter).detach().clone());
  }
  return trained;
}

void expect_same(const std::vector<Tensor>& got,
                 const std::vector<Tensor>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].equal(want[i])) << what << " " << i;
  }
}

TEST(GatherCopy, GivesTheSameBitsWhoeverWritesTheShards) {
  using torch::optim::AdamWOptions;
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  const std::vector<Writer> writers = {
      {"AdamW", stepping<AdamW>(AdamWOptions(0.05)), true},
      {"AdamW of two groups", in_two_groups, true},
      {"clipped in the step", clipping, true},
      {"SGD", stepping<SGD>(SGDOptions(0.1))},
      {"a load", loading},
      {"shards written", writing_shards}};
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const World& world) {
      for (const Writer& writer : writers) {
        const Trained got = train(world, writer, GatherCopy::kept);
        const Trained want = train(world, writer, GatherCopy::none);
        expect_same(got.losses, want.losses, writer.name + ", loss");
        expect_same(got.shards, want.shards, writer.name + ", shard");
      }
    });
  }
}

TEST(GatherCopy, IsNotMadeForTheDtypeOfTheShards) {
  on_ranks(2, [](const World& world) {
    nn::Linear model(4, 4);
    fully_shard(*model, {.mesh = init_device_mesh(world),
                         .gather_copy = GatherCopy::kept,
                         .start_check = StartCheck::off});
    (void)model(torch::ones({1, 4}));
    for (const auto& master : masters_of(*model)) {
      EXPECT_FALSE(master->copy.defined());
    }
  });
}

TEST(GatherCopy, IsRefusedWhereGathersWouldNotSendIt) {
  on_ranks(1, [](const World& world) {
    nn::Linear model(4, 4);
    FullyShardOptions how{.mesh = init_device_mesh(world),
                          .gather_copy = GatherCopy::kept};
    how.gather_transform = float8_gather();
    EXPECT_THROW(fully_shard(*model, how), InvalidArgument);
    how.gather_transform = nullptr;
    how.offload_policy = CPUOffloadPolicy{};
    EXPECT_THROW(fully_shard(*model, how), InvalidArgument);
  });
}

TEST(StepClipped, IsClippingAndThenAStep) {
  on_ranks(2, [](const World& world) {
    const Trained got =
        train(world, {"in the step", clipping}, GatherCopy::none);
    const Trained want =
        train(world, {"apart", clipping_apart}, GatherCopy::none);
    expect_same(got.shards, want.shards, "shard");
  });
}

TEST(StepClipped, RefusesWhatIsNoNorm) {
  const Tensor parameter = torch::ones({2}).requires_grad_();
  parameter.mutable_grad() = torch::ones({2});
  AdamW optimizer({parameter}, torch::optim::AdamWOptions(0.1));
  EXPECT_THROW(optimizer.step_clipped(Tensor(), 1.0), InvalidArgument);
  EXPECT_THROW(optimizer.step_clipped(torch::ones({2}), 1.0), InvalidArgument);
  EXPECT_THROW(optimizer.step_clipped(torch::ones({}), -1.0), InvalidArgument);
  EXPECT_TRUE(parameter.equal(torch::ones({2})));
  EXPECT_TRUE(parameter.grad().equal(torch::ones({2})));
}

}  // namespace
}  // namespace tessera::test
