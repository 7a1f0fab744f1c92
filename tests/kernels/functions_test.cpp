// The fused functions against the plain compositions of LibTorch's operators.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/kernels/cross_entropy.h"
#include "tessera/kernels/linear_each.h"
#include "tessera/kernels/rms_norm.h"
#include "tessera/kernels/rope.h"
#include "tessera/kernels/swiglu.h"
#include "tests/kernels/alike.h"

namespace tessera {
namespace {

using namespace alike;

/// The gradient is the slope of the function along a random direction.
void expect_slope(const Tensors& inputs, const Function& function) {
  constexpr double kStep = 1e-6;
  const Tensors at = leaves(inputs, torch::kDouble);
  const Tensor value = function(at)[0].sum();
  const Tensors slopes = torch::autograd::grad({value}, at);
  double want = 0;
  Tensors before;
  Tensors after;
  for (size_t i = 0; i < at.size(); ++i) {
    const Tensor way = torch::randn_like(at[i]);
    want += (slopes[i] * way).sum().item<double>();
    before.push_back(at[i].detach() - kStep * way);
    after.push_back(at[i].detach() + kStep * way);
  }
  const Tensor rise = function(after)[0].sum() - function(before)[0].sum();
  EXPECT_NEAR(rise.item<double>() / (2 * kStep), want,
              1e-6 * std::max(1.0, std::abs(want)));
}

Tensor random(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

Tensor plain_norm(const Tensor& x, const Tensor& weight) {
  return x / (x.square().mean(-1, true) + 1e-5).sqrt() * weight;
}

const std::vector<std::vector<int64_t>> kShapes = {
    {1, 1}, {3, 7}, {2, 5, 96}, {4, 1, 33}, {0, 8}, {2, 0, 5}, {130}};

TEST(RmsNorm, IsThePlainComposition) {
  torch::manual_seed(1);
  for (const auto& shape : kShapes) {
    const Tensor weight = random({shape.back()});
    expect_alike(
        "rms_norm", {random(shape), weight},
        [](const Tensors& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
        [](const Tensors& in) { return Tensors{plain_norm(in[0], in[1])}; });
  }
}

TEST(RmsNorm, AfterAnAddGivesTheSumToo) {
  torch::manual_seed(2);
  for (const auto& shape : kShapes) {
    expect_alike(
        "add_rms_norm", {random(shape), random(shape), random({shape.back()})},
        [](const Tensors& in) {
          const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return Tensors{sum, norm};
        },
        [](const Tensors& in) {
          const Tensor sum = in[0] + in[1];
          return Tensors{sum, plain_norm(sum, in[2])};
        });
  }
}

TEST(RmsNorm, BackwardTakesEitherResultAlone) {
  const Tensors in =
      leaves({random({3, 8}), random({3, 8}), random({8})}, torch::kDouble);
  const auto results = add_rms_norm(in[0], in[1], in[2], 1e-5);
  const auto of_sum = torch::autograd::grad({results.sum.sum()}, in, {}, true,
                                            false, /*allow_unused=*/true);
  EXPECT_TRUE(of_sum[0].equal(torch::ones({3, 8}, torch::kDouble)));
  EXPECT_FALSE(of_sum[2].defined());
  const auto of_norm = torch::autograd::grad({results.norm.sum()}, in);
  const auto want =
      torch::autograd::grad({plain_norm(in[0] + in[1], in[2]).sum()}, in);
  for (size_t i = 0; i < in.size(); ++i) {
    expect_close(of_norm[i], want[i], 1e-11, "one result");
  }
}

Tensor plain_rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + torch::cat({-halves[1], halves[0]}, -1) * sin;
}

TEST(Rope, IsThePlainComposition) {
  torch::manual_seed(3);
  const std::vector<std::array<int64_t, 4>> sizes = {
      {1, 1, 1, 2}, {2, 3, 5, 6}, {2, 2, 9, 64}, {0, 2, 3, 4}, {2, 1, 0, 4}};
  for (const auto& [batch, heads, positions, width] : sizes) {
    // Halves of the tables that differ: nothing may assume that they do not.
    const Tensor cos = random({positions + 2, width}).to(torch::kFloat);
    const Tensor sin = random({positions + 2, width}).to(torch::kFloat);
    const auto heads_of = [heads = heads, width = width](const Tensor& flat) {
      return flat.view({flat.size(0), flat.size(1), heads, width})
          .transpose(1, 2);
    };
    expect_alike(
        "rope", {random({batch, positions, heads * width})},
        [&](const Tensors& in) {
          const Tensor x = heads_of(in[0]);
          const Tensor y = rope(x, cos, sin);
          if (x.numel() > 0) {
            EXPECT_EQ(y.strides(), x.strides());
          }
          return Tensors{y};
        },
        [&, positions = positions](const Tensors& in) {
          return Tensors{plain_rope(
              heads_of(in[0]), cos.narrow(0, 0, positions).to(torch::kDouble),
              sin.narrow(0, 0, positions).to(torch::kDouble))};
        });
  }
}

TEST(LinearEach, IsThePlainComposition) {
  torch::manual_seed(6);
  for (const auto& shape : kShapes) {
    const int64_t dim = shape.back();
    expect_alike(
        "linear_each",
        {random(shape), random({3, dim}), random({5, dim}), random({1, dim})},
        [](const Tensors& in) {
          return linear_each(in[0], {in[1], in[2], in[3]});
        },
        [](const Tensors& in) {
          return Tensors{torch::linear(in[0], in[1]),
                         torch::linear(in[0], in[2]),
                         torch::linear(in[0], in[3])};
        });
  }
}

TEST(Swiglu, IsThePlainComposition) {
  torch::manual_seed(4);
  for (const auto& shape : kShapes) {
    expect_alike(
        "swiglu", {random(shape) * 3, random(shape)},
        [](const Tensors& in) { return Tensors{swiglu(in[0], in[1])}; },
        [](const Tensors& in) { return Tensors{torch::silu(in[0]) * in[1]}; });
  }
}

Tensor plain_loss(const Tensor& logits, const Tensor& targets) {
  return torch::cross_entropy_loss(logits.flatten(0, -2), targets.flatten(), {},
                                   at::Reduction::Sum);
}

Tensor some_targets(at::IntArrayRef sizes, int64_t vocab) {
  Tensor targets = torch::randint(vocab, sizes, torch::kLong);
  if (targets.numel() > 2) targets.view({-1})[1] = -100;
  return targets;
}

TEST(CrossEntropy, IsThePlainComposition) {
  torch::manual_seed(5);
  for (const int64_t vocab : {1, 5, 64, 1003}) {
    for (const int64_t rows : {1, 7}) {
      const Tensor targets = some_targets({2, rows}, vocab);
      expect_alike(
          "cross_entropy", {random({2, rows, vocab}) * 3},
          [&](const Tensors& in) {
            return Tensors{cross_entropy(in[0], targets)};
          },
          [&](const Tensors& in) {
            return Tensors{plain_loss(in[0], targets)};
          });
    }
  }
}

TEST(CrossEntropy, OfNoTargetIsZeroWithoutGradient) {
  for (const int64_t rows : {0, 3}) {
    Tensor logits = random({rows, 4}).requires_grad_();
    const Tensor loss = cross_entropy(
        logits, torch::full({rows}, 9, torch::kLong), {.ignore_index = 9});
    EXPECT_EQ(loss.item<double>(), 0);
    const Tensor gradient = torch::autograd::grad({loss}, {logits})[0];
    EXPECT_TRUE(gradient.equal(torch::zeros_like(logits)));
  }
}

TEST(CrossEntropy, BearsLogitsThatAreHugeOrMasked) {
  Tensor logits = torch::tensor(
      {{1e4, -1e4, 0.0}, {-std::numeric_limits<double>::infinity(), 1.0, 2.0}},
      torch::kDouble);
  logits.requires_grad_();
  const Tensor targets = torch::tensor({1, 2});
  const Tensor loss = cross_entropy(logits, targets);
  EXPECT_NEAR(loss.item<double>(), 2e4 + std::log(1 + std::exp(-1.0)), 1e-9);
  EXPECT_TRUE(
      torch::autograd::grad({loss}, {logits})[0].isfinite().all().item<bool>());
}

TEST(CrossEntropy, RefusesATargetOutOfRange) {
  EXPECT_THROW((void)cross_entropy(random({2, 4}), torch::tensor({1, 4})),
               c10::Error);
}

TEST(LinearCrossEntropy, IsThePlainCompositionInAnyNumberOfParts) {
  torch::manual_seed(6);
  for (const int64_t at_once : {0, 1, 3, 5, 9, 100}) {
    const Tensor targets = some_targets({3, 3}, 17);
    expect_alike(
        "linear_cross_entropy", {random({3, 3, 6}), random({17, 6})},
        [&](const Tensors& in) {
          return Tensors{linear_cross_entropy(in[0], in[1], targets,
                                              {.tokens_at_once = at_once})};
        },
        [&](const Tensors& in) {
          // Logits are rounded to the inputs' dtype on both sides.
          return Tensors{plain_loss(torch::linear(in[0], in[1]), targets)};
        });
  }
}

TEST(LinearCrossEntropy, OfNoTokensIsZero) {
  Tensor hidden = random({0, 4}).requires_grad_();
  Tensor weight = random({5, 4}).requires_grad_();
  const Tensor loss =
      linear_cross_entropy(hidden, weight, torch::empty({0}, torch::kLong));
  EXPECT_EQ(loss.item<double>(), 0);
  const auto slopes = torch::autograd::grad({loss}, {hidden, weight});
  EXPECT_EQ(slopes[0].sizes(), hidden.sizes());
  EXPECT_TRUE(slopes[1].equal(torch::zeros_like(weight)));
}

TEST(LinearCrossEntropy, GivesTheGradientsThatAreWanted) {
  const Tensor targets = some_targets({4}, 5);
  for (const bool of_hidden : {true, false}) {
    Tensor hidden = random({4, 3}).requires_grad_(of_hidden);
    Tensor weight = random({5, 3}).requires_grad_(!of_hidden);
    linear_cross_entropy(hidden, weight, targets).backward();
    EXPECT_EQ(hidden.grad().defined(), of_hidden);
    EXPECT_EQ(weight.grad().defined(), !of_hidden);
  }
}

TEST(LinearCrossEntropy, KeepsNoGraphInEvaluation) {
  const Tensor targets = some_targets({4}, 5);
  const Tensors in = leaves({random({4, 3}), random({5, 3})}, torch::kFloat);
  const Tensor trained = linear_cross_entropy(in[0], in[1], targets);
  const torch::NoGradGuard no_grad;
  const Tensor evaluated = linear_cross_entropy(in[0], in[1], targets);
  EXPECT_FALSE(evaluated.requires_grad());
  EXPECT_TRUE(evaluated.equal(trained));
}

// 64 parts of equal share: rounding their running sum to bfloat16 (2^-9 of it
// each time) would lose 5 % or more.
TEST(LinearCrossEntropy, AddsThePartsOfTheWeightsGradientInFloat) {
  torch::manual_seed(7);
  const Tensor hidden = torch::ones({64, 8}, torch::kBFloat16);
  Tensor weight = torch::zeros({4, 8}, torch::kBFloat16).requires_grad_();
  linear_cross_entropy(hidden, weight, torch::zeros({64}, torch::kLong),
                       {.tokens_at_once = 1})
      .backward();
  const Tensor want = torch::tensor({-48.0, 16.0, 16.0, 16.0}).unsqueeze(1);
  EXPECT_TRUE(weight.grad().to(torch::kFloat).equal(want.expand({4, 8})));
}

TEST(Functions, HaveTheSlopesThatTheySay) {
  torch::manual_seed(8);
  const Tensor targets = some_targets({5}, 7);
  expect_slope({random({5, 6}), random({6})}, [](const Tensors& in) {
    return Tensors{rms_norm(in[0], in[1], 1e-5) * in[0]};
  });
  expect_slope(
      {random({5, 6}), random({5, 6}), random({6})}, [](const Tensors& in) {
        const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
        return Tensors{sum * norm};
      });
  const Tensor cos = random({5, 4});
  const Tensor sin = random({5, 4});
  expect_slope({random({2, 3, 5, 4})}, [&](const Tensors& in) {
    return Tensors{rope(in[0], cos, sin).square()};
  });
  expect_slope({random({5, 6}), random({5, 6})}, [](const Tensors& in) {
    return Tensors{swiglu(in[0], in[1]).square()};
  });
  expect_slope({random({5, 6}), random({7, 6})}, [&](const Tensors& in) {
    return Tensors{
        linear_cross_entropy(in[0], in[1], targets, {.tokens_at_once = 2})};
  });
  expect_slope({random({5, 7})}, [&](const Tensors& in) {
    return Tensors{cross_entropy(in[0], targets)};
  });
}

TEST(Functions, RefuseAGradientOfTheirGradient) {
  const Tensors in = leaves({random({3, 4}), random({4})}, torch::kDouble);
  const Tensor y = rms_norm(in[0], in[1], 1e-5).sum();
  EXPECT_THROW((void)torch::autograd::grad({y}, in, {}, true,
                                           /*create_graph=*/true),
               Unsupported);
}

TEST(Functions, RefuseShapesThatDoNotFit) {
  const Tensor x = random({3, 4});
  const Tensor targets = torch::zeros({3}, torch::kLong);
  EXPECT_THROW((void)rms_norm(x, random({3}), 1e-5), InvalidArgument);
  EXPECT_THROW((void)add_rms_norm(x, random({1, 4}), random({4}), 1e-5),
               InvalidArgument);
  EXPECT_THROW((void)rope(x, x, x), InvalidArgument);
  EXPECT_THROW((void)swiglu(x, x.to(torch::kFloat)), InvalidArgument);
  EXPECT_THROW((void)cross_entropy(x, targets.to(torch::kInt)),
               InvalidArgument);
  EXPECT_THROW((void)linear_cross_entropy(x, random({7, 5}), targets),
               InvalidArgument);
  EXPECT_THROW((void)linear_cross_entropy(x, random({7, 4}),
                                          torch::zeros({4}, torch::kLong)),
               InvalidArgument);
}

}  // namespace
}  // namespace tessera
