// Every torch::nn layer computes with parameters in bfloat16 under a
// MixedPrecisionPolicy, for its operators cast their inputs; or LibTorch says
// that it cannot.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/fully_shard.h"
#include "tests/layers/probe.h"

namespace tessera::testing {
namespace {

const MixedPrecisionPolicy kBfloat16{.param_dtype = torch::kBFloat16,
                                     .reduce_dtype = torch::kFloat};

bool is_one_of(const LayerCase& layer_case,
               const std::vector<std::string>& names) {
  return std::ranges::find(names, layer_case.name) != names.end();
}

// Weights in bfloat16, running statistics in float: refused by name.
bool keeps_statistics(const LayerCase& layer_case) {
  return is_one_of(layer_case, {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d",
                                "BatchNorm2dEval", "Sequential"});
}

// What mixes dtypes outside of the operators that cast. A unit of its own
// without param_dtype, or inputs in bfloat16 (as `call` gives), help.
bool mixes_dtypes(const LayerCase& layer_case) {
  return is_one_of(layer_case,
                   {
                       // Copies outputs into a tensor of its input's dtype.
                       "AdaptiveLogSoftmaxWithLoss",
                       // Differentiates by itself, not knowing of a cast.
                       "TorchScript",
                   });
}

// Gradients cut to whole numbers, say, would be zeros without a word.
TEST(MixedPrecisionPolicy, WithADtypeThatHoldsNoGradientsIsRefused) {
  const auto refusal = [](const MixedPrecisionPolicy& policy) {
    std::string message;
    run_ranks(
        1,
        [&](const World& world) {
          torch::nn::Linear linear(3, 2);
          try {
            fully_shard(*linear,
                        {.mesh = init_device_mesh(world), .mp_policy = policy});
          } catch (const InvalidArgument& error) {
            message = error.what();
          }
          EXPECT_FALSE(is_fully_sharded(*linear));
        },
        kDeadline);
    return message;
  };
  for (const auto& [field, policy] :
       std::vector<std::pair<std::string, MixedPrecisionPolicy>>{
           {"param_dtype Int", {.param_dtype = torch::kInt}},
           {"param_dtype ComplexFloat", {.param_dtype = torch::kComplexFloat}},
           {"reduce_dtype Bool", {.reduce_dtype = torch::kBool}},
           {"reduce_dtype Float8_e5m2", {.reduce_dtype = torch::kFloat8_e5m2}},
           {"output_dtype Long", {.output_dtype = torch::kLong}}}) {
    EXPECT_NE(refusal(policy).find(field), std::string::npos) << field;
  }
}

class LayerInBfloat16 : public ::testing::TestWithParam<LayerCase> {};

TEST_P(LayerInBfloat16, TrainsAlmostAsInFloatOrRaises) {
  const LayerCase& layer_case = GetParam();
  const DefaultDtype with_dtype(torch::kFloat);
  const Trained whole = train_whole(layer_case, 2);
  const auto train_sharded = [&](const World& world) {
    Probe probe = make_probe(layer_case);
    if (keeps_statistics(layer_case)) {
      EXPECT_THROW(shard(probe, Nesting::layer_in_root, init_device_mesh(world),
                         kBfloat16),
                   Unsupported);
      return;
    }
    shard(probe, Nesting::layer_in_root, init_device_mesh(world), kBfloat16);
    if (mixes_dtypes(layer_case)) {
      EXPECT_ANY_THROW(probe->loss({world.rank(), 0}).backward());
      return;
    }
    // One rounding is 2^-9 of a value; a handful of layers add theirs up.
    expect_trains_like(whole, probe, world.rank(), 3e-2);
  };
  run_ranks(2, train_sharded, kDeadline);
}

TEST(BatchNorm, TrainsInFloatAmongLayersInBfloat16) {
  const DefaultDtype with_dtype(torch::kFloat);
  run_ranks(
      2,
      [](const World& world) {
        torch::nn::Linear linear(4, 6);
        torch::nn::BatchNorm1d norm(6);
        torch::nn::Sequential model(linear, norm);
        torch::NoGradGuard no_grad;
        linear->weight.fill_(0.25);
        linear->bias.fill_(0);
        const DeviceMesh mesh = init_device_mesh(world);
        fully_shard(*norm, {.mesh = mesh});
        fully_shard(*model, {.mesh = mesh, .mp_policy = kBfloat16});
        torch::AutoGradMode grad(true);
        // Rows of equal sum: 1 on the first rank, 2 on the second.
        const torch::Tensor output =
            model->forward(torch::full({3, 4}, 1.0 + world.rank()));
        EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
        output.to(torch::kFloat).pow(2).mean().backward();
        EXPECT_FLOAT_EQ(norm->running_mean[0].item<float>(),
                        0.1F * (1.0F + static_cast<float>(world.rank())));
      },
      kDeadline);
}

INSTANTIATE_TEST_SUITE_P(All, LayerInBfloat16, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::testing
