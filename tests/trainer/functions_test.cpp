// Each function beside the same thing written out in plain ATen, forward and
// gradient, in double.
#include "tessera/train/functions.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using at::Tensor;
using Function = std::function<Tensor(const std::vector<Tensor>&)>;

Tensor noise(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

/// Output, and the gradient of a weighted sum of it for each input.
std::vector<Tensor> run(const Function& function,
                        const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.detach().clone().requires_grad_(true));
  }
  std::vector<Tensor> results = {function(leaves)};
  const auto weights =
      torch::arange(1, results[0].numel() + 1, torch::kDouble).sin();
  (results[0].flatten() * weights).sum().backward();
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  results[0] = results[0].detach();
  return results;
}

void expect_same(const Function& got, const Function& want,
                 const std::vector<Tensor>& inputs) {
  const auto results = run(got, inputs);
  const auto expected = run(want, inputs);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].sizes(), expected[i].sizes()) << i;
    // Double, sums of at most a few hundred terms near 1.
    EXPECT_LT((results[i] - expected[i]).abs().max().item<double>(), 1e-11)
        << (i == 0 ? "the output" : "the gradient of input ") << i;
  }
}

TEST(Functions, RmsNormDividesByTheRootMeanSquare) {
  torch::manual_seed(1);
  expect_same([](const auto& in) { return rms_norm(in[0], in[1], 1e-3); },
              [](const auto& in) {
                const auto mean = (in[0] * in[0]).sum(-1, true) / 6.0;
                return in[0] / (mean + 1e-3).sqrt() * in[1];
              },
              {noise({2, 5, 6}), noise({6})});
}

TEST(Functions, SwigluIsGateTimesSigmoidTimesUp) {
  torch::manual_seed(1);
  expect_same(
      [](const auto& in) { return swiglu(in[0], in[1]); },
      [](const auto& in) { return in[0] / (1 + (-in[0]).exp()) * in[1]; },
      {noise({2, 3, 7}), noise({2, 3, 7})});
}

TEST(Functions, RotateTurnsEachPairByItsAngle) {
  torch::manual_seed(1);
  const int64_t seq = 5, width = 6;
  auto rotary = make_rotary(seq, width, 100.0);
  rotary = {rotary.cos.to(torch::kDouble), rotary.sin.to(torch::kDouble)};
  const auto x = noise({1, 2, seq, width});
  const auto turned = rotate(x, rotary);
  for (int64_t n = 0; n < seq; ++n) {
    for (int64_t i = 0; i < width / 2; ++i) {
      const double angle = n * std::pow(100.0, -2.0 * i / width);
      const double a = x[0][1][n][i].item<double>();
      const double b = x[0][1][n][i + width / 2].item<double>();
      // The tables are float32.
      EXPECT_NEAR(turned[0][1][n][i].item<double>(),
                  a * std::cos(angle) - b * std::sin(angle), 1e-6);
      EXPECT_NEAR(turned[0][1][n][i + width / 2].item<double>(),
                  b * std::cos(angle) + a * std::sin(angle), 1e-6);
    }
  }
}

TEST(Functions, AnOddHeadWidthCannotTurn) {
  EXPECT_THROW((void)make_rotary(4, 5, 100.0), InvalidArgument);
}

TEST(Functions, AttentionIsCausalAndSharesKeysAmongHeads) {
  torch::manual_seed(1);
  const int64_t heads = 4, kv_heads = 2, seq = 5, width = 3;
  expect_same(
      [](const auto& in) { return causal_attention(in[0], in[1], in[2]); },
      [&](const auto& in) {
        std::vector<Tensor> outputs;
        for (int64_t head = 0; head < heads; ++head) {
          const auto q = in[0].select(1, head);
          const auto k = in[1].select(1, head / (heads / kv_heads));
          const auto v = in[2].select(1, head / (heads / kv_heads));
          const auto scores =
              q.matmul(k.transpose(1, 2)) / std::sqrt(double(width));
          const auto future = torch::ones({seq, seq}, torch::kBool).triu(1);
          outputs.push_back(
              scores.masked_fill(future, -INFINITY).softmax(-1).matmul(v));
        }
        return torch::stack(outputs, 1);
      },
      {noise({2, heads, seq, width}), noise({2, kv_heads, seq, width}),
       noise({2, kv_heads, seq, width})});
}

TEST(Functions, SplittingAndJoiningHeadsGivesTheInputBack) {
  const auto x = noise({2, 3, 8});
  const auto heads = split_heads(x, 4);
  EXPECT_EQ(heads.sizes(), (std::vector<int64_t>{2, 4, 3, 2}));
  EXPECT_TRUE(torch::equal(heads[1][3][2], x[1][2].narrow(0, 6, 2)));
  EXPECT_TRUE(torch::equal(join_heads(heads), x));
}

TEST(Functions, TokenLossesAreSummedAndMissingTargetsLeftOut) {
  torch::manual_seed(1);
  const std::vector<int64_t> wanted = {3, kNoTarget, 0, 6};
  const auto targets = torch::tensor(wanted, torch::kLong).view({2, 2});
  expect_same(
      [&](const auto& in) { return sum_of_token_losses(in[0], targets); },
      [&](const auto& in) {
        const auto log_p = in[0] - in[0].exp().sum(-1, /*keepdim=*/true).log();
        return -(log_p[0][0][3] + log_p[1][0][0] + log_p[1][1][6]);
      },
      {noise({2, 2, 7})});
}

TEST(Functions, DropoutKeepsTheMeanInTrainingAndIsNothingElsewhere) {
  torch::manual_seed(1);
  const auto x = torch::ones({100, 100});
  EXPECT_TRUE(dropout(x, 0.25, Mode::evaluation).is_same(x));
  EXPECT_TRUE(dropout(x, 0, Mode::training).is_same(x));
  const auto dropped = dropout(x, 0.25, Mode::training);
  EXPECT_TRUE(torch::allclose(std::get<0>(at::_unique(dropped)),
                              torch::tensor({0.0, 1 / 0.75})));
  // Of 10 000 draws: 0.01 is two deviations of the mean.
  EXPECT_NEAR(dropped.mean().item<double>(), 1, 0.02);
}

TEST(Functions, TokenLossesOfLowPrecisionLogitsAreTakenInFloat32) {
  const auto logits = torch::randn({1, 3, 5}).to(torch::kBFloat16);
  const auto targets = torch::zeros({1, 3}, torch::kLong);
  EXPECT_EQ(sum_of_token_losses(logits, targets).dtype(), torch::kFloat);
}

}  // namespace
}  // namespace tessera::train
