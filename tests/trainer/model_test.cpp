// The two models: names, causality, tied heads, first weights, and one answer
// at any number of ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/tensor/spread.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

using test::kSmallModels;

std::vector<std::string> names_of(LanguageModel& model) {
  return model.named_parameters().keys();
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

LanguageModelPtr plain(const ModelConfig& config) {
  auto model = build_model_meta(config);
  draw_weights(*model, {.seed = 7, .std = 0.2, .layers = config.layers});
  return model;
}

TEST(Llama, HasTheParameterNamesOfThePeer) {
  auto config = kSmallModels[0];
  const auto names = names_of(*build_model_meta(config));
  for (const char* name :
       {"embed_tokens.weight", "layers.0.input_layernorm.weight",
        "layers.1.q_proj.weight", "layers.1.k_proj.weight",
        "layers.1.v_proj.weight", "layers.1.o_proj.weight",
        "layers.0.post_attention_layernorm.weight", "layers.0.gate_proj.weight",
        "layers.0.up_proj.weight", "layers.0.down_proj.weight", "norm.weight",
        "lm_head.weight"}) {
    EXPECT_TRUE(has(names, name)) << name;
  }
  EXPECT_EQ(names.size(), 2u * 9 + 3);
}

TEST(Llama, ATiedHeadIsTheEmbedding) {
  auto config = kSmallModels[0];
  config.tied = true;
  EXPECT_FALSE(has(names_of(*build_model_meta(config)), "lm_head.weight"));
  auto model = plain(config);
  const auto logits = model->forward(torch::zeros({1, 2}, torch::kLong));
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{1, 2, config.vocab}));
}

TEST(Models, APositionSeesAllThatComesBeforeAndNothingAfter) {
  for (const ModelConfig& config : kSmallModels) {
    auto model = plain(config);
    const torch::NoGradGuard no_grad;
    torch::manual_seed(3);
    const auto tokens = torch::randint(config.vocab, {2, 9}, torch::kLong);
    const auto logits = model->forward(tokens);
    for (int64_t changed = 0; changed < 9; ++changed) {
      auto other = tokens.clone();
      other.select(1, changed).add_(1).remainder_(config.vocab);
      const auto same =
          model->forward(other).isclose(logits, 1e-5, 1e-6).all(-1).all(0);
      EXPECT_TRUE(same.narrow(0, 0, changed).all().item<bool>()) << changed;
      EXPECT_FALSE(same[8].item<bool>()) << changed;
    }
  }
}

TEST(Models, DropOutInTrainingAlone) {
  for (ModelConfig config : kSmallModels) {
    config.dropout = 0.5;
    auto model = plain(config);
    const torch::NoGradGuard no_grad;
    const auto tokens = torch::arange(8, torch::kLong).view({1, 8});
    EXPECT_FALSE(torch::equal(model->forward(tokens), model->forward(tokens)));
    model->eval();
    const auto logits = model->forward(tokens);
    EXPECT_TRUE(torch::equal(model->forward(tokens), logits));
  }
}

TEST(Models, AreBuiltWithoutMemory) {
  for (const ModelConfig& config : kSmallModels) {
    for (const auto& parameter : build_model_meta(config)->parameters()) {
      EXPECT_TRUE(parameter.is_meta());
    }
  }
}

TEST(Models, HaveAsManyParametersAsThePresetsSay) {
  for (ModelConfig config : kSmallModels) {
    for (const bool tied : {false, true}) {
      config.tied = tied;
      int64_t count = 0;
      for (const auto& parameter : build_model_meta(config)->parameters()) {
        count += parameter.numel();
      }
      EXPECT_EQ(count, num_parameters(config)) << tied;
    }
  }
}

TEST(Models, FirstWeightsHaveTheDeviationsAskedFor) {
  for (ModelConfig config : kSmallModels) {
    config.dim = 64;
    config.ffn = 96;
    auto model = plain(config);
    for (const auto& item : model->named_parameters()) {
      const bool residual =
          item.key().find("o_proj.w") != std::string::npos ||
          item.key().find("down_proj.w") != std::string::npos ||
          item.key().find("c_proj.w") != std::string::npos;
      const auto& value = item.value();
      if (value.dim() < 2) {
        const double want = item.key().ends_with("bias") ? 0 : 1;
        EXPECT_TRUE(value.eq(want).all().item<bool>()) << item.key();
        continue;
      }
      const double want = residual ? 0.2 / std::sqrt(2.0 * config.layers) : 0.2;
      // At least 576 draws: the estimate is off by 3 % at one deviation.
      EXPECT_NEAR(value.std().item<double>() / want, 1, 0.12) << item.key();
    }
  }
}

/// Loss and gradients of one forward on a sharded Llama, over two ranks.
std::vector<at::Tensor> loss_and_gradients(ModelKernels kernels,
                                           RecomputePolicy recompute,
                                           int64_t selective_last = 0,
                                           int64_t offload_blocks = 0) {
  std::vector<at::Tensor> results;
  run_ranks(2, [&](const World& world) {
    auto config = kSmallModels[0];
    config.kernels = kernels;
    config.recompute = recompute;
    config.selective_last = selective_last;
    config.offload_blocks = offload_blocks;
    config.offload_gb_per_s = 1e9;  // memory goes behind the next block
    auto model = test::sharded(config, init_device_mesh(world));
    auto batch = test::random_batch(config, 2, world.rank());
    batch.target[0][3] = kNoTarget;
    const auto loss = model->sum_of_losses(batch.input, batch.target);
    loss.backward();
    if (world.rank() != 0) return;
    results = {loss.detach()};
    for (const auto& parameter : model->parameters()) {
      results.push_back(local(parameter.grad()).clone());
    }
  });
  return results;
}

TEST(Llama, HasTheSameGradientsWithFusedKernels) {
  const auto want =
      loss_and_gradients(ModelKernels::plain, RecomputePolicy::none);
  const auto got =
      loss_and_gradients(ModelKernels::fused, RecomputePolicy::none);
  ASSERT_EQ(got.size(), want.size());
  ASSERT_EQ(got.size(), 2u * 9 + 4);
  // Float sums in another order.
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(got[i].allclose(want[i], 1e-4, 1e-5)) << i;
  }
}

TEST(Llama, HasTheSameBitsUnderAnyRecomputePolicy) {
  for (const auto kernels : {ModelKernels::plain, ModelKernels::fused}) {
    const auto want = loss_and_gradients(kernels, RecomputePolicy::none);
    using enum RecomputePolicy;
    for (const auto& [policy, selective_last, offload_blocks] :
         std::vector<std::tuple<RecomputePolicy, int64_t, int64_t>>{
             {selective, 0, 0},
             {but_attention, 0, 0},
             {block, 0, 0},
             {block, 1, 0},
             {offload, 0, 0},
             {none, 0, 1},
             {block, 1, 1}}) {
      const auto got =
          loss_and_gradients(kernels, policy, selective_last, offload_blocks);
      ASSERT_EQ(got.size(), want.size());
      // Three gradients of a block's input: LibTorch's norm on a CPU has two,
      // and a region of its own adds these up first.
      const bool reordered =
          policy == but_attention && kernels == ModelKernels::plain;
      const double bound = reordered ? 1e-5 : 0;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(got[i].allclose(want[i], bound, bound)) << i;
      }
    }
  }
}

std::string policies_of(int64_t layers, int64_t selective_last,
                        int64_t offload_blocks) {
  const ModelConfig config{.layers = layers,
                           .recompute = RecomputePolicy::block,
                           .selective_last = selective_last,
                           .offload_blocks = offload_blocks};
  validate(config);
  std::string policies;
  for (int64_t i = 0; i < layers; ++i) {
    switch (recompute_of(config, i)) {
      case RecomputePolicy::offload:
        policies += 'o';
        break;
      case RecomputePolicy::selective:
        policies += 's';
        break;
      default:
        policies += '.';
    }
  }
  return policies;
}

TEST(RecomputeOf, OffloadedBlocksAreSpreadOverTheOthers) {
  EXPECT_EQ(policies_of(4, 0, 0), "....");
  EXPECT_EQ(policies_of(4, 0, 2), "o.o.");
  EXPECT_EQ(policies_of(4, 0, 4), "oooo");
  EXPECT_EQ(policies_of(4, 1, 1), "o..s");
  EXPECT_EQ(policies_of(16, 2, 4), "..o..o..o..o..ss");
  EXPECT_EQ(policies_of(28, 5, 9), "....o.o.o.o.o.o.o.o.o..sssss");
  for (int64_t layers = 1; layers < 20; ++layers) {
    for (int64_t last = 0; last <= layers; ++last) {
      for (int64_t blocks = 0; blocks <= layers - last; ++blocks) {
        const std::string got = policies_of(layers, last, blocks);
        EXPECT_EQ(std::ranges::count(got, 'o'), blocks) << got;
        EXPECT_EQ(std::ranges::count(got, 's'), last) << got;
      }
    }
  }
  EXPECT_THROW(policies_of(4, 1, 4), InvalidArgument);
  EXPECT_THROW(policies_of(4, 0, -1), InvalidArgument);
}

TEST(Models, HaveOneUnitForEmbeddingsEachBlockHeadAndRoot) {
  run_ranks(1, [](const World& world) {
    const auto mesh = init_device_mesh(world);
    for (const ModelConfig& config : kSmallModels) {
      auto model = test::sharded(config, mesh);
      const size_t embeddings =
          config.architecture == Architecture::gpt2 ? 2 : 1;
      const size_t heads = config.tied ? 0 : 1;
      EXPECT_EQ(units_below(*model).size(),
                embeddings + config.layers + heads + 1);
    }
  });
}

}  // namespace
}  // namespace tessera::train
