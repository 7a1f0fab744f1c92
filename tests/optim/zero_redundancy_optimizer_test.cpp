// The step: the numbers of the optimizer that is wrapped, at any number of
// ranks, with state on the owner alone.
#include "tessera/optim/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>

#include "tessera/optim/lr_schedule.h"
#include "tests/optim/zero_support.h"

namespace tessera::test {
namespace {

// An optimizer of a user's own.
class SignSGD : public torch::optim::Optimizer {
 public:
  SignSGD(const Groups& groups, const torch::optim::SGDOptions& defaults)
      : Optimizer(groups,
                  std::make_unique<torch::optim::SGDOptions>(defaults)) {}
  Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (Tensor& one : group.params()) {
        if (!one.grad().defined()) continue;
        one.add_(one.grad().sign(), -group.options().get_lr());
      }
    }
    return {};
  }
};

}  // namespace
}  // namespace tessera::test

template <>
struct tessera::WrappedTraits<tessera::test::SignSGD> {
  using Options = torch::optim::SGDOptions;
  using Archive = tessera::test::SignSGD;
};

namespace tessera::test {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using ZeroAdamW = ZeroRedundancyOptimizer<torch::optim::AdamW>;
using ZeroSGD = ZeroRedundancyOptimizer<torch::optim::SGD>;

constexpr int kSteps = 4;

// Trains two groups, wrapped and not; all bits must be the same.
template <class Wrapped>
void expect_same_bits(
    const typename ZeroRedundancyOptimizer<Wrapped>::Options& first,
    const typename ZeroRedundancyOptimizer<Wrapped>::Options& second) {
  const Parameters plain = parameters();
  Wrapped reference(two_groups(plain, first, second), first);
  std::vector<Parameters> want;
  for (int step = 0; step < kSteps; ++step) {
    set_gradients(plain, step);
    reference.step();
    want.push_back(values(plain));
  }
  for (const int num_ranks : {1, 2, 3, 4}) {
    for (const BucketView view : kViews) {
      on_ranks(num_ranks, [&](const World& world) {
        const Parameters own = parameters();
        ZeroRedundancyOptimizer<Wrapped> optimizer(
            two_groups(own, first, second), first, zero_options(world, view));
        for (int step = 0; step < kSteps; ++step) {
          set_gradients(own, step);
          optimizer.step();
          expect_equal(
              own, want[step],
              str("step ", step, " at rank ", world.rank(), " of ", num_ranks));
        }
      });
    }
  }
}

class ZeroRedundancy : public DoubleByDefault {};

TEST_F(ZeroRedundancy, HasTheBitsOfAdamW) {
  expect_same_bits<torch::optim::AdamW>(AdamWOptions(1e-2).amsgrad(true),
                                        AdamWOptions(3e-3).weight_decay(0.5));
}

TEST_F(ZeroRedundancy, HasTheBitsOfAdam) {
  using torch::optim::AdamOptions;
  expect_same_bits<torch::optim::Adam>(
      AdamOptions(1e-2), AdamOptions(1e-3).betas({0.5, 0.9}).amsgrad(true));
}

TEST_F(ZeroRedundancy, HasTheBitsOfSGDWithMomentum) {
  expect_same_bits<torch::optim::SGD>(
      SGDOptions(0.1).momentum(0.9).nesterov(true),
      SGDOptions(0.2).momentum(0.5).dampening(0.1).weight_decay(0.01));
}

TEST_F(ZeroRedundancy, HasTheBitsOfAdagradAndRMSprop) {
  using torch::optim::AdagradOptions;
  using torch::optim::RMSpropOptions;
  expect_same_bits<torch::optim::Adagrad>(AdagradOptions(1e-2),
                                          AdagradOptions(0.1).lr_decay(0.1));
  expect_same_bits<torch::optim::RMSprop>(
      RMSpropOptions(1e-2), RMSpropOptions(0.1).momentum(0.9).centered(true));
}

TEST_F(ZeroRedundancy, HasTheBitsOfTheFusedAdamW) {
  expect_same_bits<AdamW>(AdamWOptions(1e-2).amsgrad(true),
                          AdamWOptions(3e-3).amsgrad(true).weight_decay(0.5));
}

TEST_F(ZeroRedundancy, HasTheBitsOfAnOptimizerOfOnesOwn) {
  expect_same_bits<SignSGD>(SGDOptions(0.1), SGDOptions(0.2));
}

// What the owner computed counts, not what each rank would compute itself.
TEST_F(ZeroRedundancy, TakesTheValuesOfTheOwner) {
  for (const BucketView view : kViews) {
    on_ranks(3, [&](const World& world) {
      const Parameters own = parameters();
      ZeroSGD optimizer(own, 0.5, zero_options(world, view));
      const Parameters before = values(own);
      set_gradients(own, 1, 10 * world.rank());
      optimizer.step();
      for (size_t i = 0; i < own.size(); ++i) {
        const Parameters owners = values(before);
        set_gradients(owners, 1, 10 * optimizer.owner_of(own[i]));
        torch::optim::SGD plain(owners, 0.5);
        plain.step();
        EXPECT_TRUE(torch::equal(own[i], owners[i])) << i;
      }
    });
  }
}

// Parameters of more than 1 MiB go as they lie, or packed where they are not
// contiguous; of several dtypes.
TEST_F(ZeroRedundancy, SendsLargeParametersAndSeveralDtypes) {
  const auto make = [] {
    return Parameters{parameter(1, {600, 300}),
                      noise(2, {400, 500}).t(),
                      noise(3, {900, 600}).to(torch::kFloat),
                      parameter(4, {3}),
                      noise(5, {40, 30}).to(torch::kBFloat16),
                      noise(6, {70, 3}).to(torch::kFloat)};
  };
  Parameters plain = make();
  for (Tensor& one : plain) one.set_requires_grad(true);
  torch::optim::SGD reference(plain, SGDOptions(0.1).momentum(0.9));
  for (const int step : {1, 2}) {
    set_gradients(plain, step);
    reference.step();
  }
  for (const BucketView view : kViews) {
    on_ranks(2, [&](const World& world) {
      Parameters own = make();
      for (Tensor& one : own) one.set_requires_grad(true);
      ZeroSGD optimizer(own, SGDOptions(0.1).momentum(0.9),
                        zero_options(world, view));
      for (const int step : {1, 2}) {
        set_gradients(own, step);
        optimizer.step();
      }
      expect_equal(own, plain, str("rank ", world.rank()));
      EXPECT_EQ(own[1].strides(), plain[1].strides());
    });
  }
}

TEST_F(ZeroRedundancy, HasStateOnTheOwnerAlone) {
  for (const int num_ranks : {1, 2, 3, 4}) {
    on_ranks(num_ranks, [&](const World& world) {
      const Parameters own = parameters();
      ZeroAdamW optimizer(own, 1e-2, zero_options(world));
      int64_t mine = 0;
      for (const Tensor& one : own) {
        one.mutable_grad() = torch::ones_like(one);
        if (optimizer.owns(one)) mine += one.numel();
      }
      optimizer.step();
      EXPECT_TRUE(optimizer.state().empty());
      const auto held = numel_of_state(optimizer.local_optimizer());
      EXPECT_EQ(held, 2 * mine);
      int64_t all = 0;
      for (const auto& numbers :
           all_ranks(world, {static_cast<double>(held)})) {
        all += static_cast<int64_t>(numbers[0]);
      }
      EXPECT_EQ(all, 2 * 298);
    });
  }
}

TEST_F(ZeroRedundancy, DividesAsTheGreedyPartitionSays) {
  on_ranks(2, [&](const World& world) {
    Parameters own;
    for (const int64_t size : {5, 3, 9, 1, 4, 4}) {
      own.push_back(parameter(1, {size}));
    }
    const ZeroSGD optimizer(own, 0.1, zero_options(world));
    std::vector<int> owners;
    for (const Tensor& one : own) owners.push_back(optimizer.owner_of(one));
    EXPECT_EQ(owners, (std::vector<int>{1, 1, 0, 1, 1, 0}));
  });
}

TEST_F(ZeroRedundancy, WorksWithMoreRanksThanParameters) {
  for (const BucketView view : kViews) {
    on_ranks(4, [&](const World& world) {
      const Parameters own = {parameter(1, {3, 2}), parameter(2, {4})};
      const Parameters plain = values(own);
      ZeroAdamW optimizer(own, 0.1, zero_options(world, view));
      torch::optim::AdamW reference(plain, 0.1);
      for (int step = 1; step < 4; ++step) {
        set_gradients(own, step);
        set_gradients(plain, step);
        optimizer.step();
        reference.step();
      }
      expect_equal(own, plain, str("rank ", world.rank()));
      EXPECT_EQ(optimizer.local_optimizer().state().empty(), world.rank() > 1);
    });
  }
}

TEST_F(ZeroRedundancy, FollowsRatesThatAreChanged) {
  on_ranks(2, [&](const World& world) {
    const Parameters own = parameters();
    const Parameters plain = values(own);
    const AdamWOptions first(1e-2), second(1e-3);
    ZeroAdamW optimizer(two_groups(own, first, second), first,
                        zero_options(world));
    torch::optim::AdamW reference(two_groups(plain, first, second), first);
    torch::optim::StepLR schedule(optimizer, 1, 0.5);
    torch::optim::StepLR plain_schedule(reference, 1, 0.5);
    LrSchedule warmup(optimizer, {.total_steps = 9, .warmup_steps = 5}, {0.1});
    LrSchedule plain_warmup(reference, {.total_steps = 9, .warmup_steps = 5},
                            {0.1});
    for (int step = 0; step < 6; ++step) {
      set_gradients(own, step);
      set_gradients(plain, step);
      optimizer.step();
      reference.step();
      schedule.step();
      plain_schedule.step();
      if (step == 2) {
        for (auto* each : {static_cast<torch::optim::Optimizer*>(&optimizer),
                           static_cast<torch::optim::Optimizer*>(&reference)}) {
          each->param_groups()[1].options().set_lr(0.3);
          static_cast<AdamWOptions&>(each->param_groups()[0].options())
              .weight_decay(0.7);
        }
      }
      if (step == 4) {
        warmup.apply(3);
        plain_warmup.apply(3);
      }
      expect_equal(own, plain, str("step ", step));
    }
  });
}

TEST_F(ZeroRedundancy, AddsGroupsAndKeepsWhatItHas) {
  for (const BucketView view : kViews) {
    on_ranks(3, [&](const World& world) {
      const Parameters own = parameters();
      const Parameters more = parameters(50);
      const Parameters plain = values(own);
      const Parameters plain_more = values(more);
      ZeroAdamW optimizer(own, 1e-2, zero_options(world, view));
      torch::optim::AdamW reference(plain, 1e-2);
      std::vector<int> owners;
      for (const Tensor& one : own) owners.push_back(optimizer.owner_of(one));
      for (int step = 0; step < 5; ++step) {
        if (step == 2) {
          optimizer.add_param_group(
              Group(more, std::make_unique<AdamWOptions>(0.2)));
          reference.add_param_group(
              Group(plain_more, std::make_unique<AdamWOptions>(0.2)));
        }
        for (const auto* each : {&own, &more, &plain, &plain_more}) {
          set_gradients(*each, step);
        }
        optimizer.step();
        reference.step();
        expect_equal(own, plain, str("step ", step));
        expect_equal(more, plain_more, str("added, step ", step));
      }
      EXPECT_EQ(optimizer.param_groups().size(), 2U);
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(optimizer.owner_of(own[i]), owners[i]);
      }
      optimizer.zero_grad();
      for (const auto* each : {&own, &more}) {
        for (const Tensor& one : *each) EXPECT_FALSE(one.grad().defined());
      }
    });
  }
}

TEST_F(ZeroRedundancy, KeepsTheParametersOfAnOwnerInOneBucket) {
  on_ranks(2, [&](const World& world) {
    const Parameters own = parameters();
    const Parameters before = values(own);
    const ZeroSGD optimizer(own, 0.1, zero_options(world, BucketView::on));
    expect_equal(own, before, "values");
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(own[i].is_leaf() && own[i].requires_grad());
      for (size_t j = 0; j < own.size(); ++j) {
        if (own[i].numel() == 0 || own[j].numel() == 0) continue;
        EXPECT_EQ(own[i].storage().is_alias_of(own[j].storage()),
                  optimizer.owner_of(own[i]) == optimizer.owner_of(own[j]));
      }
    }
  });
}

TEST_F(ZeroRedundancy, NeitherStepsNorSendsWhatIsFrozen) {
  for (const BucketView view : kViews) {
    on_ranks(2, [&](const World& world) {
      const Parameters own = parameters();
      const Parameters plain = values(own);
      ZeroAdamW optimizer(own, 0.1, zero_options(world, view));
      torch::optim::AdamW reference(plain, 0.1);
      for (int step = 1; step < 7; ++step) {
        set_gradients(own, step);
        set_gradients(plain, step);
        const bool freezes = step == 3 || step == 4;
        own[4].set_requires_grad(!freezes);
        if (freezes) plain[4].mutable_grad() = Tensor();  // own[4] has one
        const Tensor gradient = own[4].grad();
        optimizer.step();
        reference.step();
        EXPECT_TRUE(own[4].grad().is_same(gradient));
        expect_equal(own, plain, str("step ", step));
        if (freezes && view == BucketView::on) {  // and keeps no bucket alive
          EXPECT_EQ(own[4].storage().nbytes(), own[4].nbytes());
        }
      }
    });
  }
}

}  // namespace
}  // namespace tessera::test
