#include <vector>

#include "tessera/module/recompute.h"
#include "tests/parallel/support.h"

namespace tessera::test {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<ChainImpl>>;

class DataParallelTest : public DoubleByDefault {};

Tensor loss_of(ChainImpl& model, const Turn& turn) {
  return model.forward(batch(turn.rank, turn.step)).square().mean();
}

/// Losses, gradients and weights of some steps, as one process has them.
void expect_plain_steps(const DataParallelOptions& options) {
  const Setup setup = {.steps = 4};
  for (const int world_size : {1, 2, 3, 4}) {
    const Record want = train_plain(
        world_size, make_chain,
        [](nn::Module& m, const Turn& turn) {
          return loss_of(dynamic_cast<ChainImpl&>(m), turn);
        },
        setup);
    on_ranks(world_size, [&](const World& world) {
      const Model model = build(make_chain);
      Ddp ddp(as_chain(model), options_over(world, options));
      const auto optimizer = make_sgd(model->parameters());
      for (int step = 0; step < setup.steps; ++step) {
        const std::string at = str(" of W = ", world_size, ", step ", step);
        optimizer->zero_grad(/*set_to_none=*/step % 2 == 0);
        const Tensor loss = ddp(batch(world.rank(), step)).square().mean();
        loss.backward();
        EXPECT_NEAR(mean_over_ranks(world, loss.item<double>()),
                    want.losses[step], 1e-9)
            << at;
        expect_close(plain_gradients(*model), want.gradients[step],
                     "gradients" + at);
        optimizer->step();
        expect_close(plain_values(*model), want.values[step], "values" + at);
      }
    });
  }
}

TEST_F(DataParallelTest, TrainsAsOneProcessDoes) { expect_plain_steps({}); }

TEST_F(DataParallelTest, TrainsAsOneProcessDoesInManyBuckets) {
  expect_plain_steps({.bucket_cap_mib = kSmallBuckets});
}

TEST_F(DataParallelTest, TrainsAsOneProcessDoesWithGradientsInBuckets) {
  expect_plain_steps({.bucket_cap_mib = kSmallBuckets,
                      .gradient_memory = GradientMemory::bucket});
}

TEST_F(DataParallelTest, TrainsAsOneProcessDoesWithAStaticGraph) {
  expect_plain_steps(
      {.bucket_cap_mib = kSmallBuckets, .static_graph = StaticGraph::yes});
}

TEST_F(DataParallelTest, TrainsAsOneProcessDoesWhereItLooksForUnusedOnes) {
  expect_plain_steps({.bucket_cap_mib = kSmallBuckets,
                      .unused_parameters = UnusedParameters::find});
}

TEST_F(DataParallelTest, StartsWithTheValuesOfRankZero) {
  on_ranks(3, [](const World& world) {
    const Model model = build(make_chain);
    const Tensors before = plain_values(*model);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        parameter.add_(world.rank());
      }
    }
    const Ddp ddp(as_chain(model), options_over(world));
    expect_close(plain_values(*model), before, "values", 0);
  });
}

TEST_F(DataParallelTest, AnOptimizerMadeBeforeHoldsTheSameParameters) {
  on_ranks(2, [](const World& world) {
    const Model model = build(make_chain);
    const auto optimizer = make_sgd(model->parameters());
    Ddp ddp(as_chain(model), options_over(world));
    const Tensors before = plain_values(*model);
    ddp(batch(world.rank(), 0)).sum().backward();
    optimizer->step();
    for (const auto& [name, value] : plain_values(*model)) {
      EXPECT_FALSE(torch::equal(value, before.at(name))) << name;
    }
  });
}

TEST_F(DataParallelTest, WithoutSyncGradientsAddUpAndTheNextSendsTheSum) {
  for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
    const Model plain = build(make_chain);
    const Tensors want = mean_gradients(
        2,
        [](ChainImpl& m, int rank) {
          Tensor sum = torch::zeros({});
          for (int step = 0; step < 3; ++step) {
            sum = sum + loss_of(m, {rank, step, 1});
          }
          return sum;
        },
        plain);
    on_ranks(2, [&](const World& world) {
      const Model model = build(make_chain);
      Ddp ddp(as_chain(model),
              options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                   .gradient_memory = memory}));
      for (int round = 0; round < 2; ++round) {
        model->zero_grad();
        {
          const NoSync no_sync = ddp.no_sync();
          for (int step = 0; step < 2; ++step) {
            ddp(batch(world.rank(), step)).square().mean().backward();
          }
        }
        const Tensor alone = model->parameters()[0].grad().clone();
        ddp(batch(world.rank(), 2)).square().mean().backward();
        EXPECT_FALSE(torch::equal(alone, model->parameters()[0].grad()));
        expect_close(plain_gradients(*model), want, "gradients");
      }
    });
  }
}

TEST_F(DataParallelTest, TheForwardDecidesWhetherItsBackwardReduces) {
  const Model plain = build(make_chain);
  const auto one = [](ChainImpl& m, int rank) {
    return loss_of(m, {rank, 0, 1});
  };
  const Tensors mean = mean_gradients(2, one, plain);
  on_ranks(2, [&](const World& world) {
    const Model model = build(make_chain);
    Ddp ddp(as_chain(model), options_over(world));
    const Tensor outside = ddp(batch(world.rank(), 0)).square().mean();
    {
      const NoSync no_sync = ddp.no_sync();
      outside.backward();
    }
    expect_close(plain_gradients(*model), mean, "reduced");
    model->zero_grad();
    Tensor inside;
    {
      const NoSync no_sync = ddp.no_sync();
      inside = ddp(batch(world.rank(), 0)).square().mean();
    }
    inside.backward();
    const Model alone = build(make_chain);
    loss_of(dynamic_cast<ChainImpl&>(*alone), {world.rank(), 0, 1}).backward();
    expect_close(plain_gradients(*model), plain_gradients(*alone), "local");
  });
}

TEST_F(DataParallelTest, TwoForwardsAndOneOrTwoBackwardsGiveTheirSum) {
  const Model plain = build(make_chain);
  const Tensors want = mean_gradients(
      3,
      [](ChainImpl& m, int rank) {
        return loss_of(m, {rank, 0, 1}) + loss_of(m, {rank, 1, 1});
      },
      plain);
  on_ranks(3, [&](const World& world) {
    const Model model = build(make_chain);
    Ddp ddp(as_chain(model),
            options_over(world, {.bucket_cap_mib = kSmallBuckets}));
    for (const int backwards : {1, 2, 1}) {
      model->zero_grad();
      const Tensor a = ddp(batch(world.rank(), 0)).square().mean();
      const Tensor b = ddp(batch(world.rank(), 1)).square().mean();
      if (backwards == 1) {
        (a + b).backward();
      } else {
        a.backward();
        b.backward();
      }
      expect_close(plain_gradients(*model), want,
                   str(backwards, " backwards: gradients"));
    }
  });
}

TEST_F(DataParallelTest, AKeptGraphReducesAgain) {
  on_ranks(2, [](const World& world) {
    const Model model = build(make_chain);
    Ddp ddp(as_chain(model), options_over(world));
    const Tensor loss = ddp(batch(world.rank(), 0)).square().mean();
    loss.backward({}, /*retain_graph=*/true);
    const Tensors once = plain_gradients(*model);
    model->zero_grad();
    loss.backward();
    expect_close(plain_gradients(*model), once, "gradients", 0);
  });
}

// A region's backward is one inside of the other, which ends before it.
TEST_F(DataParallelTest, RecomputedRegionsAreReducedWhenAllIsThrough) {
  struct RegionsImpl : ChainImpl {
    Tensor forward(const Tensor& x) {
      const Tensor a =
          recompute([&](const Tensor& in) { return torch::tanh(last(in)); }, x);
      const Tensor b = recompute(
          [&](const Tensor& in) { return torch::tanh(middle(in)); }, a);
      return first(b);
    }
  };
  const Model plain = build(make_chain);
  const Tensors want = mean_gradients(
      2,
      [](ChainImpl& m, int rank) {
        return loss_of(m, {rank, 0, 1});
      },
      plain);
  for (const auto unused : {UnusedParameters::error, UnusedParameters::find}) {
    on_ranks(2, [&](const World& world) {
      const auto model = std::dynamic_pointer_cast<RegionsImpl>(
          build([] { return std::make_shared<RegionsImpl>(); }));
      DistributedDataParallel ddp(
          model, options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                      .unused_parameters = unused}));
      for (int step = 0; step < 3; ++step) {
        model->zero_grad();
        ddp(batch(world.rank(), 0).requires_grad_()).square().mean().backward();
        expect_close(plain_gradients(*model), want, "gradients");
      }
    });
  }
}

}  // namespace
}  // namespace tessera::test
