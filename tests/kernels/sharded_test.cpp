// The fused functions on full parameters of fully_shard, which no pointer may
// reach before they are gathered.
#include <ATen/CPUGeneratorImpl.h>

#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/linear_each.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/swiglu.h"
#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

constexpr int64_t kWidth = 6;
constexpr int64_t kVocab = 11;

struct LayerImpl : nn::Module {
  Tensor scale;
  nn::Linear gate{nullptr}, up{nullptr};
  LayerImpl() {
    scale = register_parameter("scale", torch::rand({kWidth}) + 0.5);
    gate = register_module("gate", nn::Linear(kWidth, kWidth));
    up = register_module("up", nn::Linear(kWidth, kWidth));
  }
  SumAndNorm forward(const Tensor& branch, const Tensor& residual) {
    const auto [sum, norm] = add_rms_norm(branch, residual, scale, 1e-5);
    const auto both = linear_each(norm, {gate->weight, up->weight});
    return {sum, swiglu(both[0] + gate->bias, both[1] + up->bias)};
  }
};
TORCH_MODULE(Layer);

// The norms alone are a unit, and so is the head: nothing but a fused function
// ever reads them.
struct ModelImpl : nn::Module {
  Layer first{nullptr}, second{nullptr};
  Tensor scale;
  nn::Linear head{nullptr};

  ModelImpl() {
    first = register_module("first", Layer());
    second = register_module("second", Layer());
    scale = register_parameter("scale", torch::ones({kWidth}));
    head = register_module(
        "head", nn::Linear(nn::LinearOptions(kWidth, kVocab).bias(false)));
  }
  Tensor loss(const Tensor& x, const Tensor& targets) {
    const auto [one, branch_one] = first->forward(x, x);
    const auto [two, branch] = second->forward(branch_one, one);
    const Tensor hidden = rms_norm(two + branch, scale, 1e-5);
    return linear_cross_entropy(hidden, head->weight, targets,
                                {.tokens_at_once = 2});
  }
};

ModelImpl& as_model(nn::Module& module) {
  return dynamic_cast<ModelImpl&>(module);
}

Tensor targets_for(const Turn& turn) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(10 * turn.rank + turn.step);
  return torch::randint(0, kVocab, {5}, generator, torch::kLong);
}

Tensor loss_of(nn::Module& module, const Turn& turn) {
  const Tensor x = noise(100 + 10 * turn.rank + turn.step, {5, kWidth});
  return as_model(module).loss(x, targets_for(turn));
}

Model make_model() { return std::make_shared<ModelImpl>(); }

const std::vector<std::string> kUnits = {"first", "second", "head"};

class ShardedKernels : public DoubleByDefault {};

TEST_F(ShardedKernels, TrainAsInOneProcess) {
  expect_agreement(make_model, loss_of, {.units = kUnits});
}

TEST_F(ShardedKernels, SeeFreshWeightsInEvaluation) {
  expect_agreement(make_model, loss_of,
                   {.units = kUnits,
                    .before =
                        [](nn::Module& module, int step) {
                          const torch::NoGradGuard no_grad;
                          (void)loss_of(module, {0, step, 1});
                        },
                    .world_sizes = {2}});
}

TEST_F(ShardedKernels, NeedTheHeadOnceAStep) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_model, kUnits);
    for (int step = 0; step < 3; ++step) {
      for (const auto& unit : units_below(*model)) unit->reset_counts();
      loss_of(*model, {world.rank(), step, 1}).backward();
      for (const auto& unit : units_below(*model)) {
        const bool twice = unit->name() == "first" || unit->name() == "second";
        EXPECT_EQ(unit->counts().gathers, twice ? 2 : 1) << unit->name();
        EXPECT_EQ(unit->counts().reduces, 1) << unit->name();
      }
    }
  });
}

TEST_F(ShardedKernels, CastTheirInputsAsLibTorchsOperatorsDo) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_model);
    fully_shard(*model, {.mesh = init_device_mesh(world),
                         .mp_policy = {.param_dtype = torch::kBFloat16,
                                       .reduce_dtype = torch::kFloat}});
    Tensor x = noise(1, {5, kWidth}).requires_grad_();
    auto& typed = as_model(*model);
    EXPECT_EQ(rms_norm(x, typed.scale, 1e-5).scalar_type(), torch::kBFloat16);
    const auto [sum, norm] = add_rms_norm(x, x, typed.scale, 1e-5);
    EXPECT_EQ(norm.scalar_type(), torch::kBFloat16);
    typed.loss(x, targets_for({0, 0, 1})).backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kDouble);
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
    expect_nothing_gathered(*model, "after backward");
  });
}

}  // namespace
}  // namespace tessera::test
