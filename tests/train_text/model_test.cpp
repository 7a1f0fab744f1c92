#include "examples/train_text/model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace train_text {
namespace {

const ModelConfig kSmall{.vocab = 11,
                         .dim = 16,
                         .layers = 2,
                         .heads = 4,
                         .kv_heads = 2,
                         .ffn = 24,
                         .seq = 9};

Llama small_model() {
  torch::manual_seed(0);
  return Llama(kSmall);
}

TEST(Rotary, KeepsLengths) {
  const auto x = torch::randn({2, 3, 9, 8});
  const auto turned = rotate(x, make_rotary(9, 8, 100.0));
  // Two products and a sum of fp32 numbers near 1 for each element.
  EXPECT_TRUE(torch::allclose(turned.norm(2, -1), x.norm(2, -1), 1e-5, 1e-6));
}

TEST(Rotary, LeavesPositionZeroAlone) {
  const auto x = torch::randn({9, 8});
  const auto turned = rotate(x, make_rotary(9, 8, 100.0));
  EXPECT_TRUE(torch::equal(turned[0], x[0]));
  EXPECT_FALSE(torch::allclose(turned[1], x[1]));
}

TEST(Rotary, DotProductsDependOnTheDistanceAlone) {
  const int64_t seq = 17;
  const auto rotary = make_rotary(seq, 8, 100.0);
  const auto q = rotate(torch::randn(8).expand({seq, 8}), rotary);
  const auto k = rotate(torch::randn(8).expand({seq, 8}), rotary);
  const auto scores = q.matmul(k.t());
  for (int64_t distance = -(seq - 1); distance < seq; ++distance) {
    const auto same = scores.diagonal(distance);
    // Angles up to 17 rad carry an error of about 1e-6 in fp32.
    EXPECT_LT((same - same[0]).abs().max().item<float>(), 2e-5) << distance;
  }
  EXPECT_GT((scores.diagonal(0)[0] - scores.diagonal(3)[0]).abs().item<float>(),
            1e-3);
}

TEST(Llama, APositionSeesNothingThatComesAfterIt) {
  auto model = small_model();
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(11, {2, 9}, torch::kLong);
  const auto logits = model(tokens);
  for (int64_t changed = 0; changed < 9; ++changed) {
    auto other = tokens.clone();
    other.select(1, changed).add_(1).remainder_(11);
    const auto same = model(other).isclose(logits, 1e-5, 1e-6).all(-1).all(0);
    EXPECT_TRUE(same.narrow(0, 0, changed).all().item<bool>()) << changed;
    EXPECT_FALSE(same[changed].item<bool>()) << changed;
  }
}

TEST(Llama, AShorterSequenceGivesTheSameLogits) {
  auto model = small_model();
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(11, {2, 9}, torch::kLong);
  const auto part = model(tokens.narrow(1, 0, 4));
  EXPECT_TRUE(torch::allclose(part, model(tokens).narrow(1, 0, 4), 1e-5, 1e-6));
}

TEST(Llama, ALongDistanceIsSeen) {
  auto model = small_model();
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::zeros({1, 9}, torch::kLong);
  auto other = tokens.clone();
  other[0][0] = 5;
  EXPECT_FALSE(torch::allclose(model(tokens)[0][8], model(other)[0][8]));
}

TEST(Llama, EveryParameterGetsAGradient) {
  auto model = small_model();
  const auto tokens = torch::arange(9).unsqueeze(0);
  model(tokens).square().mean().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<float>(), 0) << item.key();
  }
}

TEST(Llama, HasTheNamesAndSizesOfALlama) {
  auto model = small_model();
  const auto parameters = model->named_parameters();
  EXPECT_EQ(parameters["layers.1.k_proj.weight"].sizes(),
            (std::vector<int64_t>{8, 16}));
  EXPECT_EQ(parameters["layers.0.down_proj.weight"].sizes(),
            (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(parameters.size(), 2 * 9 + 3u);
}

}  // namespace
}  // namespace train_text
