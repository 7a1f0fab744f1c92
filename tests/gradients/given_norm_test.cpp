// clip_grads_with_norm_, and norms over what several fully_shard calls made.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/fully_shard.h"
#include "tests/support/gradients.h"

namespace tessera {
namespace {

using testing::kNormTypes;
using testing::norm_of;
using testing::parameters_with;
using Tensors = std::vector<at::Tensor>;

Tensors some_gradients(at::ScalarType dtype) {
  return {torch::linspace(-1, 2, 40, dtype).view({8, 5}),
          torch::linspace(0, 3, 7, dtype), torch::zeros({0, 4}, dtype),
          torch::full({1, 2}, -1.5, dtype)};
}

TEST(ClipGradsWithNorm, ScalesAsClipGradNormDoesByANormThatIsGiven) {
  for (double p : kNormTypes) {
    const Tensors gradients = some_gradients(at::kDouble);
    const Tensors whole = parameters_with(gradients);
    const Tensors halves = parameters_with(gradients);
    clip_grad_norm_(whole, 0.5, {.norm_type = p});
    const at::Tensor norm = get_total_norm(halves, {.norm_type = p});
    const auto middle = halves.begin() + 2;
    clip_grads_with_norm_({halves.begin(), middle}, 0.5, norm);
    clip_grads_with_norm_({middle, halves.end()}, 0.5, norm.reshape({1}));
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(halves[i].grad().equal(whole[i].grad())) << p;
    }
  }
}

TEST(ClipGradsWithNorm, LeavesGradientsBelowTheNormAndRefusesTheRest) {
  const Tensors gradients = some_gradients(at::kFloat);
  const Tensors parameters = parameters_with(gradients);
  clip_grads_with_norm_(parameters, 2, torch::full({}, 1.0));
  clip_grads_with_norm_({torch::ones({2})}, 2, torch::full({}, 1.0));
  EXPECT_TRUE(parameters[0].grad().equal(gradients[0]));
  for (double bad : {-1.0, std::nan("")}) {
    EXPECT_THROW(clip_grads_with_norm_(parameters, bad, torch::ones({})),
                 InvalidArgument);
  }
  EXPECT_THROW(clip_grads_with_norm_(parameters, 1, at::Tensor()),
               InvalidArgument);
  EXPECT_THROW(clip_grads_with_norm_(parameters, 1, torch::ones({2})),
               InvalidArgument);
}

/// The same layers on every rank: over rows of a mesh, over its columns, over
/// all ranks by two calls, plain, and one that has no gradient.
struct Layers {
  std::vector<torch::nn::Linear> all;

  Layers() {
    for (int i = 0; i < 6; ++i) {
      all.emplace_back(5, 3 + i);
      torch::NoGradGuard no_grad;
      for (at::Tensor& p : all.back()->parameters()) p.fill_(0.1 * (i + 1));
    }
  }
  void shard(const World& world) {
    const auto mesh =
        init_device_mesh(world, {.shape = {2, 2}, .axes = {"row", "column"}});
    fully_shard(*all[0], {.mesh = mesh["row"]});
    fully_shard(*all[1], {.mesh = mesh["column"]});
    const auto flat = mesh.flatten("all");
    fully_shard(*all[2], {.mesh = flat});
    fully_shard(*all[3], {.mesh = flat});
    fully_shard(*all[5], {.mesh = flat});
  }
  void backward() {
    const auto x = torch::linspace(-1, 2, 10).view({2, 5});
    for (int i = 0; i < 5; ++i) all[i](x).pow(2).sum().backward();
  }
  Tensors parameters() const {
    Tensors list;
    for (const auto& layer : all) {
      for (const auto& p : layer->parameters()) list.push_back(p);
    }
    return list;
  }
};

TEST(ClipGradNorm, TakesShardsOfSeveralCallsAndMeshesWithPlainParameters) {
  Layers plain;
  plain.backward();
  Tensors gradients;
  for (const auto& p : plain.parameters()) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  run_ranks(4, [&](const World& world) {
    Layers layers;
    layers.shard(world);
    layers.backward();
    for (double p : kNormTypes) {
      const double expected = norm_of(gradients, p);
      const auto norm = get_total_norm(layers.parameters(), {.norm_type = p});
      EXPECT_NEAR(norm.item<double>() / expected, 1, 1e-5) << p;
    }
    clip_grad_norm_(layers.parameters(), 1);
    EXPECT_NEAR(get_total_norm(layers.parameters()).item<double>(), 1, 1e-5);
    layers.all[4]->bias.mutable_grad().fill_(std::nan(""));
    for (double p : kNormTypes) {
      EXPECT_THROW(
          clip_grad_norm_(layers.parameters(), 1,
                          {.norm_type = p, .on_nonfinite = NonFinite::raise}),
          InvalidState);
    }
  });
}

}  // namespace
}  // namespace tessera
