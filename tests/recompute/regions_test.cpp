// Regions of plain modules: the numbers of a backward without them, and what is
// refused.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/module/free_until_backward.h"
#include "tessera/module/recompute.h"

namespace tessera {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

nn::Linear layer() {
  torch::manual_seed(1);
  return nn::Linear(4, 4);
}

Tensor input() {
  torch::manual_seed(2);
  return torch::randn({3, 4}).requires_grad_();
}

/// Gradients of the input and of the layer.
std::vector<Tensor> gradients_of(const Tensor& loss, const Tensor& x,
                                 nn::Linear& linear) {
  linear->zero_grad();
  x.mutable_grad().reset();
  loss.backward();
  return {x.grad().clone(), linear->weight.grad().clone(),
          linear->bias.grad().clone()};
}

void expect_equal(const std::vector<Tensor>& got,
                  const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(got[i].equal(want[i])) << i;
}

TEST(Recompute, GivesTheBitsOfAPlainBackwardAndRunsTheRegionTwice) {
  auto linear = layer();
  const Tensor x = input();
  int runs = 0;
  const auto region = [&](const Tensor& in) {
    ++runs;
    return torch::tanh(linear(torch::tanh(in)));
  };
  const auto want = gradients_of(region(x).square().sum(), x, linear);
  runs = 0;
  const Tensor y = recompute(region, x);
  EXPECT_EQ(runs, 1);
  expect_equal(gradients_of(y.square().sum(), x, linear), want);
  EXPECT_EQ(runs, 2);
}

TEST(Recompute, KeepsNothingButItsInputs) {
  Tensor inside;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        inside = in * 2;
        return inside.exp();
      },
      input());
  EXPECT_EQ(inside.use_count(), 1);
  EXPECT_FALSE(inside.requires_grad());
  EXPECT_TRUE(y.requires_grad());
}

TEST(Recompute, DrawsTheSameNumbersAndLeavesTheGeneratorAlone) {
  auto linear = layer();
  const Tensor x = input();
  const auto region = [&](const Tensor& in) {
    return torch::dropout(linear(in), 0.5, true);
  };
  torch::manual_seed(3);
  const auto want = gradients_of(region(x).square().sum(), x, linear);
  const Tensor next = torch::rand({5});
  torch::manual_seed(3);
  expect_equal(gradients_of(recompute(region, x).square().sum(), x, linear),
               want);
  EXPECT_TRUE(torch::rand({5}).equal(next));
}

TEST(Recompute, WithoutRandomStateDrawsAnew) {
  const Tensor x = torch::ones({1000}).requires_grad_();
  const Tensor y = recompute(
      [](const TensorVector& in) -> TensorVector {
        return {torch::dropout(in[0], 0.5, true)};
      },
      {x}, {.random = RecomputeOptions::Random::none})[0];
  y.sum().backward();
  EXPECT_FALSE(x.grad().equal(y.detach()));
}

TEST(Recompute, WorksInsideItself) {
  auto linear = layer();
  const Tensor x = input();
  const auto inner = [&](const Tensor& in) { return torch::tanh(linear(in)); };
  const auto outer = [&](const Tensor& in) {
    return recompute(inner, recompute(inner, in) + in);
  };
  const auto plain = [&](const Tensor& in) { return inner(inner(in) + in); };
  const auto want = gradients_of(plain(x).square().sum(), x, linear);
  expect_equal(gradients_of(recompute(outer, x).square().sum(), x, linear),
               want);
}

/// Two values of a region, which are freed until backward.
struct FreedValues {
  int runs = 0;
  std::vector<Tensor> values;

  Tensor loss(nn::Linear& linear, const Tensor& x) {
    const auto run = recompute_outputs(
        [&](const TensorVector& in) -> TensorVector {
          ++runs;
          const Tensor y = torch::tanh(linear(in[0]));
          return {y, y.exp()};
        },
        {x});
    values = run.values;
    const Tensor squares = values[0].square() + values[1].square();
    for (size_t i = 0; i < values.size(); ++i) {
      free_until_backward(values[i], {squares},
                          [again = run.again, i] { return again(i); });
    }
    return squares.sum();
  }
};

TEST(Recompute, RunsOnceForAllValuesThatItsUsersLost) {
  auto linear = layer();
  const Tensor x = input();
  const Tensor y = torch::tanh(linear(x));
  const auto want =
      gradients_of((y.square() + y.exp().square()).sum(), x, linear);
  FreedValues freed;
  const Tensor loss = freed.loss(linear, x);
  for (const Tensor& value : freed.values) {
    EXPECT_EQ(value.storage().data(), nullptr);
  }
  expect_equal(gradients_of(loss, x, linear), want);
  EXPECT_EQ(freed.runs, 2);
}

TEST(Recompute, OfLostValuesServesTwoBackwards) {
  auto linear = layer();
  const Tensor x = input();
  FreedValues freed;
  const Tensor loss = freed.loss(linear, x);
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(x.grad().equal(2 * once));
}

TEST(Recompute, OfTwoForwardsServesOneBackward) {
  auto linear = layer();
  const Tensor x = input();
  const auto region = [&](const Tensor& in) { return torch::tanh(linear(in)); };
  const auto loss = [](const Tensor& a, const Tensor& b) {
    return (a * b).sum();
  };
  const auto want = gradients_of(loss(region(x), region(2 * x)), x, linear);
  const auto got = gradients_of(
      loss(recompute(region, x), recompute(region, 2 * x)), x, linear);
  // The two parts are added in another order.
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::allclose(got[i], want[i], 1e-5, 1e-6)) << i;
  }
}

TEST(Recompute, TakesUndefinedInputsAndSeveralOutputs) {
  const Tensor x = input();
  const Region region = [](const TensorVector& in) -> TensorVector {
    EXPECT_FALSE(in[0].defined());
    return {in[1].exp(), in[1].detach().argmax(-1), in[1].sin()};
  };
  const auto results = recompute(region, {Tensor(), x});
  EXPECT_FALSE(results[1].requires_grad());
  results[2].sum().backward();  // the first one has no gradient
  EXPECT_TRUE(x.grad().equal(x.detach().cos()));
}

TEST(Recompute, ReachesParametersWhenNoInputWantsAGradient) {
  torch::manual_seed(4);
  nn::Embedding embedding(5, 2);
  const Tensor tokens = torch::tensor({1, 3, 1});
  recompute([&](const Tensor& in) { return embedding(in); }, tokens)
      .sum()
      .backward();
  EXPECT_EQ(embedding->weight.grad()[1][0].item<float>(), 2);
}

TEST(Recompute, IsAPlainCallWithoutGradients) {
  int runs = 0;
  const torch::NoGradGuard no_grad;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        ++runs;
        EXPECT_FALSE(in_first_run());
        return in + 1;
      },
      input());
  EXPECT_EQ(runs, 1);
  EXPECT_FALSE(y.requires_grad());
}

TEST(Recompute, KeepsAutocast) {
  auto linear = layer();
  std::vector<torch::Dtype> seen;
  const auto region = [&](const Tensor& in) {
    const Tensor y = linear(in);
    seen.push_back(y.scalar_type());
    return y;
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = recompute(region, input());
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.sum().backward();
  EXPECT_EQ(seen,
            (std::vector<torch::Dtype>{torch::kBFloat16, torch::kBFloat16}));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Recompute, PassesOnAnErrorOfTheSecondRunAndPutsAllBack) {
  const Tensor x = input();
  int runs = 0;
  const Tensor y = recompute(
      [&](const Tensor& in) {
        if (++runs == 2) throw std::runtime_error("second run");
        return in.exp();
      },
      x);
  EXPECT_THROW(y.sum().backward(), std::runtime_error);
  EXPECT_FALSE(in_second_run());
  EXPECT_FALSE(in_first_run());
}

TEST(Recompute, RefusesWhatItCannotGive) {
  const Tensor x = input();
  const auto square = [](const Tensor& in) { return in.square(); };
  const Tensor y = recompute(square, x).sum();
  EXPECT_THROW((void)torch::autograd::grad({y}, {x}), InvalidState);
  const Tensor z = recompute(square, x).sum();
  EXPECT_THROW(z.backward({}, true, /*create_graph=*/true), Unsupported);
  int runs = 0;
  const auto grows = recompute(
      [&](const TensorVector& in) { return TensorVector(++runs, in[0].exp()); },
      {x});
  EXPECT_THROW(grows[0].sum().backward(), InvalidState);
  EXPECT_THROW(
      (void)recompute([](const TensorVector&) { return TensorVector(1); }, {x}),
      InvalidArgument);
}

TEST(Recompute, NoticesAnInputThatWasWritten) {
  Tensor x = input() * 1;
  const Tensor y = recompute([](const Tensor& in) { return in.exp(); }, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace tessera
