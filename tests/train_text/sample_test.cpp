#include "examples/train_text/sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/base/error.h"

namespace train_text {
namespace {

torch::Generator generator(uint64_t seed) {
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

Llama byte_model() {
  torch::manual_seed(0);
  return Llama(ModelConfig{.dim = 16, .layers = 1, .ffn = 24, .seq = 8});
}

TEST(Pick, TemperatureZeroTakesTheLikeliest) {
  auto random = generator(0);
  const auto logits = torch::tensor({0.1f, 2.0f, 1.9f});
  EXPECT_EQ(pick(logits, 0, random), 1);
}

TEST(Pick, DrawsFromSoftmaxOfLogitsOverTemperature) {
  constexpr int kDraws = 20000;
  auto random = generator(5);
  const auto logits = torch::tensor({0.0f, 1.0f, -1.0f, 0.5f});
  auto counts = torch::zeros(4, torch::kDouble);
  for (int i = 0; i < kDraws; ++i) {
    counts[pick(logits, 0.5, random)] += 1;
  }
  const auto expected = torch::softmax(logits.to(torch::kDouble) / 0.5, 0);
  // Four standard deviations of a share near 0.5.
  const double tolerance = 4 * 0.5 / std::sqrt(kDraws);
  EXPECT_LT((counts / kDraws - expected).abs().max().item<double>(), tolerance);
}

TEST(Sample, IsDecidedByTheSeed) {
  auto model = byte_model();
  const auto text = sample(model, {.num_bytes = 40, .window = 8, .seed = 3});
  EXPECT_EQ(text.size(), 40u);
  EXPECT_EQ(sample(model, {.num_bytes = 40, .window = 8, .seed = 3}), text);
  EXPECT_NE(sample(model, {.num_bytes = 40, .window = 8, .seed = 4}), text);
}

TEST(Sample, GoesOnPastTheLongestSequenceOfTheModel) {
  auto model = byte_model();
  EXPECT_EQ(
      sample(model, {.prompt = "longer than 8", .num_bytes = 20, .window = 8})
          .size(),
      20u);
}

TEST(Sample, ContinuesThePrompt) {
  auto model = byte_model();
  const auto next = sample(
      model, {.prompt = "ab", .num_bytes = 1, .window = 8, .temperature = 0});
  const torch::NoGradGuard no_grad;
  const auto logits = model(torch::tensor({{97, 98}}, torch::kLong))[0][1];
  EXPECT_EQ(static_cast<unsigned char>(next[0]),
            logits.argmax().item<int64_t>());
}

TEST(Sample, RefusesWhatItCannotDo) {
  auto model = byte_model();
  EXPECT_THROW(std::ignore = sample(model, {.prompt = ""}),
               tessera::InvalidArgument);
  EXPECT_THROW(std::ignore = sample(model, {.window = 0}),
               tessera::InvalidArgument);
  EXPECT_THROW(std::ignore = sample(model, {.temperature = -1}),
               tessera::InvalidArgument);
}

}  // namespace
}  // namespace train_text
