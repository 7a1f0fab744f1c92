// tessera::AdamW against torch::optim::AdamW.
//
// In fp64 both follow one formula in another order of operations: 1e-12. In
// fp32 each step may differ by one unit in the last place of the parameter.
#include "tessera/optim/adamw.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tests/optim/adamw_support.h"

namespace tessera {
namespace {

using namespace testing;
using torch::optim::AdamWOptions;

void expect_near(const Tensors& got, const Tensors& expected, double bound) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(local(got[i]), expected[i], bound, bound))
        << "parameter " << i << ":\n"
        << local(got[i]) - expected[i];
  }
}

/// Counts calls of the fused kernel while it lives.
class FusedCalls {
 public:
  FusedCalls() {
    count = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call)
                                       -> std::unique_ptr<at::ObserverContext> {
          count += std::string(call.name()) == "aten::_fused_adamw_";
          return nullptr;
        }));
  }
  ~FusedCalls() { at::removeCallback(handle_); }

  static inline int count = 0;

 private:
  at::CallbackHandle handle_;
};

struct Run {
  at::ScalarType dtype;
  bool amsgrad;
  double bound;
};

class AdamWRun : public ::testing::TestWithParam<Run> {
 protected:
  void SetUp() override { torch::manual_seed(3); }
};

TEST_P(AdamWRun, MatchesStockOnPlainParametersWhoseGradientsComeAndGo) {
  const auto [dtype, amsgrad, bound] = GetParam();
  Tensors own = random_tensors(dtype);
  Tensors stock = clones(own);
  AdamW optimizer(two_groups(own, amsgrad));
  torch::optim::AdamW reference(two_groups(stock, amsgrad));
  for (int step = 0; step < 12; ++step) {
    Tensors gradients = random_gradients(own, step);
    set_gradients(own, gradients);
    set_gradients(stock, gradients);
    optimizer.step();
    reference.step();
    expect_near(own, stock, bound);
  }
}

TEST_P(AdamWRun, MatchesStockOnShardsOfOneMaster) {
  const auto [dtype, amsgrad, bound] = GetParam();
  Tensors stock = random_tensors(dtype);
  TestShards own(stock);
  AdamW optimizer(two_groups(own.shards(), amsgrad));
  torch::optim::AdamW reference(two_groups(stock, amsgrad));
  for (int step = 0; step < 12; ++step) {
    Tensors gradients = random_gradients(stock, step);
    own.set_gradients(gradients);
    set_gradients(stock, gradients);
    optimizer.step();
    reference.step();
    expect_near(own.shards(), stock, bound);
  }
}

INSTANTIATE_TEST_SUITE_P(Optim, AdamWRun,
                         ::testing::Values(Run{at::kDouble, false, 1e-12},
                                           Run{at::kDouble, true, 1e-12},
                                           Run{at::kFloat, false, 2e-6}),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param.dtype)) +
                                  (info.param.amsgrad ? "Amsgrad" : "");
                         });

double sum_of_squares(const at::Tensor& tensor) {
  torch::NoGradGuard no_grad;
  return tensor.square().sum().item<double>();
}

double sum_of_squares(const Tensors& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) sum += sum_of_squares(local(tensor));
  return sum;
}

TEST(AdamW, LeavesGapsAndPaddingZero) {
  for (double eps : {1e-8, 0.0}) {
    TestShards own(random_tensors());
    AdamW optimizer(own.shards(), AdamWOptions(1e-2).eps(eps));
    for (int step = 0; step < 3; ++step) {
      Tensors gradients;
      for (const auto& shard : own.shards()) {
        gradients.push_back(torch::randn(shard.sizes(), at::kDouble));
      }
      own.set_gradients(gradients);
      optimizer.step();
    }
    EXPECT_NEAR(sum_of_squares(own.master()->data),
                sum_of_squares(own.shards()), 1e-9)
        << "eps " << eps;
  }
}

TEST(AdamW, MakesOneCallForEachParameterGroupPlainParametersIncluded) {
  Tensors stock = random_tensors();
  TestShards one(stock), two(stock);
  Tensors plain = clones(stock);
  Tensors all = one.shards();
  all.insert(all.end(), two.shards().begin(), two.shards().end());
  all.insert(all.end(), plain.begin(), plain.end());
  AdamW optimizer(two_groups(all, false));
  one.set_gradients(stock);
  two.set_gradients(stock);
  set_gradients(plain, stock);
  FusedCalls calls;
  optimizer.step();
  EXPECT_EQ(calls.count, 2);
}

TEST(AdamW, LeavesAShardWithoutGradientAloneInTheMidstOfOthers) {
  Tensors full = {torch::ones({4}), torch::ones({4}), torch::ones({4})};
  TestShards own(full, {.gap = 0});
  AdamW optimizer(own.shards());
  own.set_gradients({full[0], at::Tensor(), full[2]});
  optimizer.step();
  EXPECT_TRUE(local(own.shards()[0]).lt(1).all().item<bool>());
  EXPECT_TRUE(local(own.shards()[1]).eq(1).all().item<bool>());
  EXPECT_TRUE(local(own.shards()[2]).lt(1).all().item<bool>());
}

TEST(AdamW, UsesGradientsThatAreNoPieceOfTheFlatOne) {
  Tensors stock = random_tensors();
  TestShards own(stock);
  AdamW optimizer(own.shards());
  torch::optim::AdamW reference(stock);
  for (int step = 0; step < 4; ++step) {
    Tensors gradients;
    for (const auto& p : stock) gradients.push_back(torch::randn_like(p));
    own.set_gradients(gradients);
    // Assigned by the caller, strided otherwise.
    own.shards()[4].mutable_grad() = gradients[4].t().contiguous().t();
    own.shards()[1].mutable_grad() = gradients[1].clone();
    set_gradients(stock, gradients);
    optimizer.step();
    reference.step();
  }
  expect_near(own.shards(), stock, 1e-12);
}

TEST(AdamW, UpdatesStridedParametersAndThoseWithHoles) {
  Tensors own = {torch::randn({5, 7}, at::kDouble).t(),
                 torch::randn({6, 8}, at::kDouble).narrow(1, 2, 3),
                 torch::randn({2, 3, 4, 5}, at::kDouble)
                     .contiguous(at::MemoryFormat::ChannelsLast)};
  for (auto& p : own) p = p.detach().set_requires_grad(true);
  Tensors stock = clones(own);
  AdamW optimizer(own);
  torch::optim::AdamW reference(stock);
  for (int step = 0; step < 4; ++step) {
    Tensors gradients;
    for (const auto& p : own) {
      gradients.push_back(torch::randn(p.sizes(), at::kDouble));
    }
    set_gradients(own, gradients);
    set_gradients(stock, gradients);
    optimizer.step();
    reference.step();
  }
  expect_near(own, stock, 1e-12);
}

TEST(AdamW, CountsStepsForEachParameter) {
  Tensors own = random_tensors();
  AdamW optimizer(own);
  std::vector<int> expected(own.size());
  for (int step = 0; step < 7; ++step) {
    Tensors gradients = random_gradients(own, step);
    set_gradients(own, gradients);
    optimizer.step();
    for (size_t i = 0; i < own.size(); ++i)
      expected[i] += gradients[i].defined();
  }
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(optimizer.state_of(own[i]).step.item<double>(), expected[i]) << i;
  }
}

TEST(AdamW, MovesTheVersionOfWhatItWrites) {
  Tensors full = {torch::ones({2, 2}), torch::ones({1, 2})};
  TestShards own(full, {.rank = 1, .num_ranks = 2});
  ASSERT_EQ(own.shards()[1].numel(), 0);
  at::Tensor plain = torch::ones({3}).set_requires_grad(true);
  at::Tensor idle = torch::ones({3}).set_requires_grad(true);
  AdamW optimizer(Tensors{own.shards()[0], own.shards()[1], plain, idle});
  own.set_gradients(full);
  plain.mutable_grad() = torch::ones({3});
  const auto before = own.shards()[0]._version();
  const auto plain_before = plain._version();
  const auto idle_before = idle._version();
  optimizer.step();
  EXPECT_GT(own.shards()[0]._version(), before);
  EXPECT_GT(own.master()->data._version(), before);
  EXPECT_GT(plain._version(), plain_before);
  EXPECT_EQ(idle._version(), idle_before);

  // A rank with nothing of the stepping parameter sees a new version too.
  const auto second = own.shards()[1]._version();
  own.set_gradients({at::Tensor(), full[1]});
  optimizer.step();
  EXPECT_GT(own.shards()[1]._version(), second);
}

TEST(AdamW, FollowsSchedulersAndZeroGrad) {
  Tensors stock = random_tensors();
  TestShards own(stock);
  AdamW optimizer(own.shards());
  torch::optim::AdamW reference(stock);
  torch::optim::StepLR schedule(optimizer, 2, 0.1);
  torch::optim::StepLR reference_schedule(reference, 2, 0.1);
  for (int step = 0; step < 5; ++step) {
    Tensors gradients = random_gradients(stock, step);
    optimizer.zero_grad();
    EXPECT_FALSE(own.shards()[0].grad().defined());
    own.set_gradients(gradients);
    set_gradients(stock, gradients);
    optimizer.step();
    reference.step();
    schedule.step();
    reference_schedule.step();
  }
  EXPECT_LT(optimizer.param_groups()[0].options().get_lr(), 1e-3);
  expect_near(own.shards(), stock, 1e-12);
}

TEST(AdamW, CallsTheClosureWithGradientsOn) {
  at::Tensor p = torch::ones({3}).set_requires_grad(true);
  AdamW optimizer(Tensors{p});
  at::NoGradGuard no_grad;
  at::Tensor loss = optimizer.step([&] {
    at::Tensor sum = p.sum();
    sum.backward();
    return sum;
  });
  EXPECT_EQ(loss.item<float>(), 3);
  EXPECT_LT(p[0].item<float>(), 1);
}

TEST(AdamW, UpdatesParametersOfSeveralDtypesAtOnce) {
  Tensors own = {torch::ones({5}, at::kDouble), torch::ones({5}),
                 torch::ones({5}, at::kBFloat16)};
  for (auto& p : own) p.set_requires_grad(true);
  AdamW optimizer(own, AdamWOptions(0.125).weight_decay(0));
  for (const auto& p : own) p.mutable_grad() = torch::ones_like(p);
  optimizer.step();
  // The first step moves by lr, whatever the gradient.
  for (const auto& p : own) EXPECT_NEAR(p[0].item<double>(), 0.875, 1e-6);
}

// `parameters()` of LibTorch lists a tied parameter once for each owner.
TEST(AdamW, StepsAParameterThatStandsTwiceOnce) {
  at::Tensor p = torch::ones({2}).set_requires_grad(true);
  AdamW optimizer(Tensors{p, p}, AdamWOptions(0.125).weight_decay(0));
  p.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_NEAR(p[0].item<double>(), 0.875, 1e-6);
  EXPECT_EQ(optimizer.state_of(p).step.item<int>(), 1);
}

}  // namespace
}  // namespace tessera
