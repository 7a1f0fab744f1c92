#include "tessera/train/second_half.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tessera/base/error.h"
#include "tests/kernels/alike.h"

namespace tessera::train {
namespace {

using namespace alike;

constexpr double kEps = 1e-5;
constexpr SecondHalfKeeps kBoth[] = {SecondHalfKeeps::nothing,
                                     SecondHalfKeeps::sum_gate_and_up};

SecondHalfWeights weights_of(const Tensors& in) {
  return {in[2], in[3], in[4], in[5], in[6]};
}

Function half_that(SecondHalfKeeps keeps) {
  return [keeps](const Tensors& in) {
    const auto half = second_half(in[0], in[1], weights_of(in), kEps, keeps);
    return Tensors{half.sum, half.branch};
  };
}

Tensors plain_half(const Tensors& in) {
  const Tensor sum = in[0] + torch::linear(in[1], in[2]);
  const Tensor norm =
      sum * torch::rsqrt(sum.square().mean(-1, true) + kEps) * in[3];
  return {sum, torch::linear(torch::silu(torch::linear(norm, in[4])) *
                                 torch::linear(norm, in[5]),
                             in[6])};
}

Tensor random(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble);
}

/// residual, mixed, and the weights; widths that no kernel prefers.
Tensors inputs_of(std::vector<int64_t> leading, int64_t dim = 5,
                  int64_t mixed = 3, int64_t inner = 7) {
  auto with = [&](int64_t last) {
    auto sizes = leading;
    sizes.push_back(last);
    return random(sizes);
  };
  return {with(dim),           with(mixed),          random({dim, mixed}),
          random({dim}),       random({inner, dim}), random({inner, dim}),
          random({dim, inner})};
}

TEST(SecondHalf, IsWhatItsOperatorsAre) {
  torch::manual_seed(3);
  for (const auto keeps : kBoth) {
    for (const auto& leading : std::vector<std::vector<int64_t>>{
             {2, 3}, {1}, {0, 4}, {}, {2, 1, 3}}) {
      // One rounding of each result does not hold in bfloat16: five layers of
      // them lie between. The policies' test compares those bit by bit.
      for (const auto dtype : {torch::kDouble, torch::kFloat}) {
        const Tensors low = leaves(inputs_of(leading), dtype);
        const Tensors high = leaves(low, torch::kDouble);
        const Tensors got = half_that(keeps)(low);
        const Tensors want = plain_half(high);
        const Tensors got_gradients = gradients(got, low);
        const Tensors want_gradients = gradients(want, high);
        for (size_t i = 0; i < got.size(); ++i) {
          expect_close(got[i], want[i], 10 * tolerance(dtype), "result");
        }
        for (size_t i = 0; i < low.size(); ++i) {
          expect_close(got_gradients[i], want_gradients[i],
                       100 * tolerance(dtype), "gradient");
        }
      }
    }
  }
}

TEST(SecondHalf, HasTheSameGradientsInASecondBackwardOfOneForward) {
  for (const auto keeps : kBoth) {
    const Tensors in = leaves(inputs_of({2, 3}), torch::kFloat);
    const Tensors out = half_that(keeps)(in);
    const Tensor loss = (out[0] * out[1]).sum();
    const Tensors first = torch::autograd::grad({loss}, in, {}, true);
    const Tensors second = torch::autograd::grad({loss}, in);
    for (size_t i = 0; i < in.size(); ++i) {
      EXPECT_TRUE(first[i].equal(second[i])) << i;
    }
  }
}

TEST(SecondHalf, HasTheGradientsThatAreWantedWhereSomeAreFrozen) {
  const Tensors values = inputs_of({2, 3});
  for (const auto keeps : kBoth) {
    const Tensors all = leaves(values, torch::kDouble);
    const Tensors out = half_that(keeps)(all);
    const Tensors want = torch::autograd::grad({(out[0] * out[1]).sum()}, all);
    for (size_t frozen = 0; frozen < values.size(); ++frozen) {
      Tensors in = leaves(values, torch::kDouble);
      in[frozen].requires_grad_(false);
      const Tensors results = half_that(keeps)(in);
      (results[0] * results[1]).sum().backward();
      for (size_t i = 0; i < in.size(); ++i) {
        if (i == frozen) {
          EXPECT_FALSE(in[i].grad().defined());
        } else {
          EXPECT_TRUE(in[i].grad().equal(want[i])) << frozen << " " << i;
        }
      }
    }
  }
}

TEST(SecondHalf, HasGradientsWhereOnlyOneResultIsUsed) {
  for (const auto keeps : kBoth) {
    for (const size_t used : {0, 1}) {
      const Tensors in = leaves(inputs_of({2, 3}), torch::kDouble);
      const Tensors plain = leaves(in, torch::kDouble);
      half_that(keeps)(in)[used].square().sum().backward();
      plain_half(plain)[used].square().sum().backward();
      for (size_t i = 0; i < in.size(); ++i) {
        ASSERT_EQ(in[i].grad().defined(), plain[i].grad().defined()) << i;
        if (!in[i].grad().defined()) continue;
        EXPECT_TRUE(in[i].grad().allclose(plain[i].grad(), 1e-9, 1e-9)) << i;
      }
    }
  }
}

TEST(SecondHalf, NoticesThatItsSumWasChangedInPlace) {
  const Tensors in = leaves(inputs_of({2, 3}), torch::kDouble);
  const Tensors out = half_that(SecondHalfKeeps::sum_gate_and_up)(in);
  out[0].add_(1);
  EXPECT_THROW(out[1].sum().backward(), c10::Error);
}

TEST(SecondHalf, RefusesAGradientOfItsGradient) {
  const Tensors in = leaves(inputs_of({2, 3}), torch::kDouble);
  const Tensors out = half_that(SecondHalfKeeps::nothing)(in);
  EXPECT_THROW(torch::autograd::grad({out[1].sum()}, in, {}, true, true),
               tessera::Unsupported);
}

}  // namespace
}  // namespace tessera::train
