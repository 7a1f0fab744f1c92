#include "tessera/comm/join.h"

#include <atomic>

#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/zero_redundancy_optimizer.h"
#include "tests/parallel/support.h"

namespace tessera::test {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<ChainImpl>>;

class JoinTest : public DoubleByDefault {};

int batches_of(int rank) { return 1 + 2 * rank; }

/// Steps of SGD on as many batches as this rank has.
void train(Ddp& ddp, int rank) {
  const auto optimizer = make_sgd(ddp.module()->parameters());
  for (int step = 0; step < batches_of(rank); ++step) {
    optimizer->zero_grad();
    ddp(batch(rank, step)).square().mean().backward();
    optimizer->step();
  }
}

constexpr double kNoClipping = 1e9;
constexpr double kDecay = 0.7;  // of the rate, a step

/// The same in one process: ranks without a batch count as zeros.
Tensors trained_alone(int world_size, JoinDivisor divisor,
                      double max_norm = kNoClipping, double decay = 1) {
  const Model model = build(make_chain);
  auto& chain = dynamic_cast<ChainImpl&>(*model);
  const auto optimizer = make_sgd(model->parameters());
  torch::optim::StepLR schedule(*optimizer, 1, decay);
  for (int step = 0; step < batches_of(world_size - 1); ++step) {
    optimizer->zero_grad();
    int active = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      active += step < batches_of(rank) ? 1 : 0;
    }
    for (int rank = 0; rank < world_size; ++rank) {
      if (step >= batches_of(rank)) continue;
      const int ranks = divisor == JoinDivisor::all_ranks ? world_size : active;
      (chain.forward(batch(rank, step)).square().mean() / ranks).backward();
    }
    clip_grad_norm_(model->parameters(), max_norm);
    optimizer->step();
    schedule.step();
  }
  return plain_values(*model);
}

TEST_F(JoinTest, RanksWithoutBatchesCountAsZerosAndEndWithTheSameModel) {
  for (const auto divisor :
       {JoinDivisor::all_ranks, JoinDivisor::active_ranks}) {
    for (const int world_size : {1, 2, 3, 4}) {
      const Tensors want = trained_alone(world_size, divisor);
      on_ranks(world_size, [&](const World& world) {
        Ddp ddp(as_chain(build(make_chain)),
                options_over(world, {.bucket_cap_mib = kSmallBuckets}));
        join({&ddp}, [&] { train(ddp, world.rank()); }, {.divisor = divisor});
        expect_close(plain_values(*ddp.module()), want,
                     str("values at W = ", world_size));
      });
    }
  }
}

TEST_F(JoinTest, WorksWithUnusedOnesAndAStaticGraph) {
  const Tensors want = trained_alone(3, JoinDivisor::all_ranks);
  for (DataParallelOptions options :
       {DataParallelOptions{.unused_parameters = UnusedParameters::find},
        DataParallelOptions{.static_graph = StaticGraph::yes},
        DataParallelOptions{.gradient_memory = GradientMemory::bucket}}) {
    options.bucket_cap_mib = kSmallBuckets;
    on_ranks(3, [&](const World& world) {
      Ddp ddp(as_chain(build(make_chain)), options_over(world, options));
      join({&ddp}, [&] { train(ddp, world.rank()); });
      expect_close(plain_values(*ddp.module()), want, "values");
    });
  }
}

/// Ranks that are through own parameters, and step them for the others.
TEST_F(JoinTest, AnOptimizerWhoseStateIsDividedJoinsToo) {
  for (const double max_norm : {kNoClipping, 0.05}) {
    for (const int world_size : {1, 2, 3, 4}) {
      const Tensors want =
          trained_alone(world_size, JoinDivisor::all_ranks, max_norm, kDecay);
      for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
        on_ranks(world_size, [&](const World& world) {
          Ddp ddp(as_chain(build(make_chain)),
                  options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                       .gradient_memory = memory}));
          const auto parameters = ddp.module()->parameters();
          ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
              parameters, torch::optim::SGDOptions(0.1),
              {.group = ddp.process_group()});
          torch::optim::StepLR schedule(optimizer, 1, kDecay);
          const auto next_rate = [&](const Joinable& joinable) {
            if (&joinable == &optimizer) schedule.step();
          };
          const auto clip = [&](const Joinable& joinable) {
            if (&joinable != &optimizer) return;
            clip_grad_norm_(parameters, max_norm);
          };
          join({&ddp, &optimizer},
               [&] {
                 for (int step = 0; step < batches_of(world.rank()); ++step) {
                   optimizer.zero_grad();
                   if (step == 0) {
                     const NoSync no_sync = ddp.no_sync();
                     (void)ddp(batch(world.rank(), step));
                   }
                   ddp(batch(world.rank(), step)).square().mean().backward();
                   clip(optimizer);
                   optimizer.step();
                   next_rate(optimizer);
                 }
               },
               {.before_shadow_step = clip, .after_shadow_step = next_rate});
          expect_close(plain_values(*ddp.module()), want,
                       str("values at W = ", world_size));
        });
      }
    }
  }
}

/// A rank that is through may own what the others no longer use.
TEST_F(JoinTest, ADividedOptimizerStepsNoOldGradients) {
  struct TwoImpl : nn::Module {
    Tensor a = register_parameter("a", torch::full({6}, 2.0));
    Tensor b = register_parameter("b", torch::full({6}, 3.0));
    Tensor forward(const Tensor& x, bool both) {
      return both ? x * a * b : x * a;
    }
  };
  for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
    on_ranks(2, [&](const World& world) {
      const auto net = std::make_shared<TwoImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.unused_parameters = UnusedParameters::find,
                                    .gradient_memory = memory}));
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
          net->parameters(), torch::optim::SGDOptions(0.5),
          {.group = ddp.process_group()});
      const int through = optimizer.owner_of(net->b);
      join({&ddp, &optimizer}, [&] {
        for (int step = 0; step < (world.rank() == through ? 1 : 4); ++step) {
          optimizer.zero_grad();
          ddp(torch::ones({1, 6}), step == 0).sum().backward();
          optimizer.step();
        }
      });
      // One step with the gradient 2.
      EXPECT_TRUE(net->b.eq(2.0).all().item<bool>()) << net->b;
    });
  }
}

TEST_F(JoinTest, HooksDivideByTheActiveRanksToo) {
  const Tensors want = trained_alone(3, JoinDivisor::active_ranks);
  on_ranks(3, [&](const World& world) {
    Ddp ddp(as_chain(build(make_chain)), options_over(world));
    ddp.set_comm_hook(comm_hooks::all_reduce(ddp.process_group()));
    join({&ddp}, [&] { train(ddp, world.rank()); },
         {.divisor = JoinDivisor::active_ranks});
    expect_close(plain_values(*ddp.module()), want, "values");
  });
}

/// A rank without batches in the first join has its first pass in the second.
TEST_F(JoinTest, AStaticGraphIsLearnedInTheFirstPassOfEachRank) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Ddp ddp(model, options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                        .static_graph = StaticGraph::yes}));
    for (int round = 0; round < 2; ++round) {
      join({&ddp}, [&] {
        if (round == 0 && world.rank() == 1) return;
        for (int step = 0; step < 2; ++step) {
          model->zero_grad();
          ddp(batch(world.rank(), step)).sum().backward();
        }
      });
    }
    const auto alone = as_chain(build(make_chain));
    for (int rank = 0; rank < 2; ++rank) {
      (alone->forward(batch(rank, 1)).sum() / 2).backward();
    }
    expect_close(plain_gradients(*model), plain_gradients(*alone), "gradients");
  });
}

TEST_F(JoinTest, RanksThatStepInUnlikeOrdersAreAnError) {
  const std::string message = message_of([] {
    on_ranks(3, [](const World& world) {
      Ddp ddp(as_chain(build(make_chain)), options_over(world));
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
          ddp.module()->parameters(), torch::optim::SGDOptions(0.1),
          {.group = ddp.process_group()});
      join({&ddp, &optimizer}, [&] {
        if (world.rank() == 1) {
          ddp(batch(1, 0)).sum().backward();
        } else if (world.rank() == 2) {
          optimizer.step();
        }
      });
    });
  });
  EXPECT_TRUE(says(message, "do not step their joinables in one order"));
}

TEST_F(JoinTest, StepsWithoutSyncAreShadowedWithoutReductions) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Ddp ddp(model, options_over(world));
    join({&ddp}, [&] {
      if (world.rank() == 0) return;
      for (int step = 0; step < 2; ++step) {
        const NoSync no_sync = ddp.no_sync();
        ddp(batch(1, step)).sum().backward();
      }
      ddp(batch(1, 2)).sum().backward();
    });
    const auto alone = as_chain(build(make_chain));
    for (int step = 0; step < 3; ++step) {
      (alone->forward(batch(1, step)).sum() / 2).backward();
    }
    expect_close(plain_gradients(*model), plain_gradients(*alone), "gradients");
  });
}

TEST_F(JoinTest, ForwardsWithoutGradientsAreNoBackwards) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Ddp ddp(model, options_over(world));
    join({&ddp}, [&] {
      if (world.rank() == 0) return;
      {
        const torch::NoGradGuard no_grad;
        for (int step = 0; step < 3; ++step) (void)ddp(batch(1, step));
      }
      ddp(batch(1, 3)).sum().backward();
    });
    const auto alone = as_chain(build(make_chain));
    (alone->forward(batch(1, 3)).sum() / 2).backward();
    expect_close(plain_gradients(*model), plain_gradients(*alone), "gradients");
  });
}

TEST_F(JoinTest, BuffersComeFromARankThatHasBatches) {
  struct CountingImpl : ChainImpl {
    Tensor calls = register_buffer("calls", torch::zeros({}, torch::kLong));
    Tensor forward(const Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        calls += 1;
      }
      return ChainImpl::forward(x);
    }
  };
  on_ranks(3, [](const World& world) {
    const auto model = std::dynamic_pointer_cast<CountingImpl>(
        build([] { return std::make_shared<CountingImpl>(); }));
    DistributedDataParallel ddp(model, options_over(world));
    join({&ddp}, [&] {
      for (int step = 0; step < 2 * (2 - world.rank()); ++step) {
        ddp(batch(world.rank(), step)).sum().backward();
      }
    });
    EXPECT_EQ(model->calls.item<int64_t>(), 4);
  });
}

TEST_F(JoinTest, OnRequestTheFirstEndIsAnErrorOnAllRanks) {
  std::atomic<int> errors = 0;
  on_ranks(3, [&](const World& world) {
    Ddp ddp(as_chain(build(make_chain)), options_over(world));
    const std::string message = message_of([&] {
      join({&ddp}, [&] { train(ddp, world.rank()); },
           {.when_one_ends = WhenOneEnds::raise});
    });
    EXPECT_TRUE(says(message, "a rank has no more batches"));
    ++errors;
    // Afterwards it may be used as before.
    ddp(batch(world.rank(), 0)).sum().backward();
  });
  EXPECT_EQ(errors, 3);
  on_ranks(2, [](const World& world) {
    Ddp ddp(as_chain(build(make_chain)), options_over(world));
    join({&ddp},
         [&] {
           for (int step = 0; step < 3; ++step) {
             ddp(batch(world.rank(), step)).sum().backward();
           }
         },
         {.when_one_ends = WhenOneEnds::raise});
  });
}

TEST_F(JoinTest, WhatCannotBeJoinedIsAnError) {
  on_ranks(2, [](const World& world) {
    EXPECT_TRUE(says(message_of([] { join({}, [] {}); }), "nothing to join"));
    Ddp ddp(as_chain(build(make_chain)), options_over(world));
    EXPECT_TRUE(says(message_of([&] {
                       join({&ddp, &ddp}, [] {});
                     }),
                     "stands here twice"));
    EXPECT_TRUE(
        says(message_of([&] { join({&ddp}, [&] { join({&ddp}, [] {}); }); }),
             "in a join already"));
    const auto alone = distributed::new_group(
        world, {world.rank()}, {.callers = distributed::Callers::members});
    Ddp other(as_chain(build(make_chain)), {.group = alone});
    EXPECT_TRUE(says(message_of([&] {
                       join({&ddp, &other}, [] {});
                     }),
                     "of several groups"));
  });
}

TEST_F(JoinTest, AnErrorInOneRanksBodyEndsTheOthers) {
  const std::string message = message_of([] {
    on_ranks(3, [](const World& world) {
      Ddp ddp(as_chain(build(make_chain)), options_over(world));
      join({&ddp}, [&] {
        train(ddp, world.rank());
        if (world.rank() == 2) throw InvalidState("out of disk");
      });
    });
  });
  EXPECT_TRUE(says(message, "rank 2"));
  EXPECT_TRUE(says(message, "out of disk"));
}

}  // namespace
}  // namespace tessera::test
