// Tokens from a model with a cache are those of a model without.
#include "tessera/train/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tests/trainer/small_model.h"

namespace tessera::train {
namespace {

using test::kSmallModels;
using Tokens = std::vector<int64_t>;

LanguageModelPtr plain(const ModelConfig& config) {
  auto model = build_model_meta(config);
  draw_weights(*model, {.seed = 7, .std = 0.2, .layers = config.layers});
  return model;
}

at::Tensor row(const Tokens& tokens) {
  return torch::tensor(tokens, torch::kLong).unsqueeze(0);
}

/// What `generate` documents, with the whole window read for each token.
Tokens generate_without_cache(LanguageModel& model,
                              const GenerateOptions& options) {
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  Tokens seen = options.prompt, made;
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    if (static_cast<int64_t>(seen.size()) > options.window) {
      seen.erase(seen.begin(),
                 seen.end() - (options.window - options.window / 4));
    }
    const auto logits = model.forward(row(seen)).select(1, -1).squeeze(0);
    made.push_back(sample_token(logits, options.sample, generator));
    seen.push_back(made.back());
  }
  return made;
}

GenerateOptions options_of(const ModelConfig& config, Tokens prompt) {
  return {.prompt = std::move(prompt),
          .num_tokens = 40,
          .window = config.seq,
          .sample = {.temperature = 1},
          .seed = 3};
}

TEST(Generate, GivesTheTokensThatAModelWithoutCacheGives) {
  const Tokens longer = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2};
  for (const ModelConfig& config : kSmallModels) {
    const auto model = plain(config);
    for (const Tokens& prompt : {Tokens{4}, Tokens{4, 9, 1}, longer}) {
      auto options = options_of(config, prompt);
      EXPECT_EQ(generate(*model, options),
                generate_without_cache(*model, options));
      options.sample.temperature = 0;
      EXPECT_EQ(generate(*model, options),
                generate_without_cache(*model, options));
      options.window = 1;
      EXPECT_EQ(generate(*model, options),
                generate_without_cache(*model, options));
    }
  }
}

TEST(Generate, GivesTheSameTokensOnShardedModels) {
  environment::disable_flight_recorder();
  for (const ModelConfig& config : kSmallModels) {
    const auto options = options_of(config, {4, 9, 1});
    const Tokens alone = generate(*plain(config), options);
    run_ranks(2, [&](const World& world) {
      const auto model = test::sharded(config, init_device_mesh(world));
      EXPECT_EQ(generate(*model, options), alone);
    });
  }
}

TEST(Extend, GivesTheLogitsOfTheWholeHoweverItIsCut) {
  const torch::NoGradGuard no_grad;
  const Tokens tokens = {1, 5, 2, 8, 3, 3, 9, 10};
  for (const ModelConfig& config : kSmallModels) {
    const auto model = plain(config);
    const auto whole = model->forward(row(tokens));
    for (const int64_t first : {1, 3, 7}) {
      KeyValueCache cache(config.seq);
      const auto input = row(tokens);
      const int64_t rest = input.size(1) - first;
      const auto logits =
          torch::cat({model->extend(input.narrow(1, 0, first), cache),
                      model->extend(input.narrow(1, first, rest), cache)},
                     1);
      // fp32 sums in another order.
      EXPECT_LT((logits - whole).abs().max().item<double>(), 1e-5) << first;
      EXPECT_EQ(cache.length(), input.size(1));
    }
  }
}

TEST(Extend, RefusesMoreTokensThanTheCacheHolds) {
  const torch::NoGradGuard no_grad;
  const auto model = plain(kSmallModels[0]);
  KeyValueCache cache(4);
  (void)model->extend(row({1, 2, 3}), cache);
  EXPECT_THROW((void)model->extend(row({4, 5}), cache), InvalidArgument);
  cache.clear();
  EXPECT_EQ(cache.length(), 0);
  (void)model->extend(row({1, 2, 3, 4}), cache);
}

}  // namespace
}  // namespace tessera::train
