// Passes in which not all parameters have one gradient, and hooks.
#include <algorithm>
#include <array>
#include <numeric>

#include "tessera/module/recompute.h"
#include "tests/parallel/pick.h"

namespace tessera::test {
namespace {

class ReductionTest : public DoubleByDefault {};

TEST_F(ReductionTest, AParameterWithoutAGradientIsNamedOnAllRanks) {
  on_ranks(3, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(
        net, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
    const std::string message =
        message_of([&] { ddp(ones(), std::string("b")).sum().backward(); });
    EXPECT_TRUE(says(message, "backward gave no gradient to 'a', 'c';"));
    EXPECT_TRUE(says(message, "UnusedParameters::find"));
    // All are through alike, and go on.
    net->zero_grad();
    ddp(ones(), std::string("abc")).sum().backward();
    EXPECT_TRUE(is_all(net->b.grad(), 8));
  });
}

TEST_F(ReductionTest, WhereOnlyOneRankLacksAGradientItsErrorEndsTheOthers) {
  const std::string message = message_of([] {
    on_ranks(3, [](const World& world) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
      ddp(ones(), std::string(world.rank() == 1 ? "ab" : "abc"))
          .sum()
          .backward();
    });
  });
  EXPECT_TRUE(says(message, "rank 1"));
  EXPECT_TRUE(says(message, "no gradient to 'c'"));
}

TEST_F(ReductionTest, UnusedOnesCountAsZerosAndStayWhereNobodyUsesThem) {
  for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
    on_ranks(4, [&](const World& world) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                    .unused_parameters = UnusedParameters::find,
                                    .gradient_memory = memory}));
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const bool has_b = world.rank() == step % 4;
        ddp(ones(), std::string(has_b ? "ab" : "a")).sum().backward();
        EXPECT_TRUE(is_all(net->a.grad(), (3 + 1 + 1 + 1) / 4.0));
        EXPECT_TRUE(is_all(net->b.grad(), 2 / 4.0));
        EXPECT_FALSE(net->c.grad().defined());
      }
      // What is there of one that nobody uses is left alone.
      net->zero_grad();
      net->c.mutable_grad() = torch::full({6}, 1.0 + world.rank());
      ddp(ones(), std::string("a")).sum().backward();
      EXPECT_TRUE(is_all(net->c.grad(), 1.0 + world.rank()));
      EXPECT_FALSE(net->b.grad().defined());
    });
  }
}

TEST_F(ReductionTest, OneThatWasUsedWithoutSyncCountsAsUsed) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(
        net,
        options_over(world, {.unused_parameters = UnusedParameters::find}));
    {
      const NoSync no_sync = ddp.no_sync();
      ddp(ones(), std::string(world.rank() == 0 ? "b" : "a")).sum().backward();
    }
    ddp(ones(), std::string("a")).sum().backward();
    EXPECT_TRUE(is_all(net->b.grad(), 0.5));
    EXPECT_TRUE(is_all(net->a.grad(), 1.5));
    EXPECT_FALSE(net->c.grad().defined());
  });
}

TEST_F(ReductionTest, ARankThatUsesNoneTakesPartThroughItsOutputs) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(
        net,
        options_over(world, {.unused_parameters = UnusedParameters::find}));
    const Tensor x = ones() * 1.0;
    ddp(x, std::string(world.rank() == 0 ? "" : "abc")).sum().backward();
    EXPECT_TRUE(is_all(net->a.grad(), 6));
    EXPECT_TRUE(is_all(net->b.grad(), 4));
  });
}

/// One weight in two regions that are computed again, so that it has two
/// gradients in each backward.
struct SharedImpl : nn::Module {
  Tensor w = register_parameter("w", torch::full({6}, 2.0));
  Tensor other = register_parameter("other", torch::full({6}, 1.0));
  Tensor extra = register_parameter("extra", torch::full({6}, 1.0));
  Tensor forward(const Tensor& x) {
    Tensor y = x;
    for (int i = 0; i < 2; ++i) {
      y = recompute([this](const Tensor& in) { return in * w; }, y);
    }
    return y * other;
  }
};

TEST_F(ReductionTest, AWeightOfSeveralRegionsWantsAStaticGraph) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<SharedImpl>();
    DistributedDataParallel ddp(
        net,
        options_over(world, {.bucket_cap_mib = kSmallBuckets,
                             .unused_parameters = UnusedParameters::find}));
    const std::string message =
        message_of([&] { ddp(ones()).sum().backward(); });
    EXPECT_TRUE(says(message, "'w' got gradient 2 of one backward"));
    EXPECT_TRUE(says(message, "StaticGraph::yes"));
  });
  for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
    on_ranks(2, [&](const World& world) {
      const auto net = std::make_shared<SharedImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.bucket_cap_mib = kSmallBuckets,
                                    .static_graph = StaticGraph::yes,
                                    .gradient_memory = memory}));
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        const Tensor x = torch::full({1, 6}, 1.0 + world.rank());
        ddp(x.requires_grad_()).sum().backward();
        // x * w * w * other, x 1 and 2.
        EXPECT_TRUE(is_all(net->w.grad(), 1.5 * 4)) << net->w.grad();
        EXPECT_TRUE(is_all(net->other.grad(), 1.5 * 4));
        EXPECT_FALSE(net->extra.grad().defined());
      }
    });
  }
}

TEST_F(ReductionTest, AStaticGraphThatChangesIsAnError) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(
        net, options_over(world, {.static_graph = StaticGraph::yes}));
    ddp(ones(), std::string("ab")).sum().backward();
    EXPECT_TRUE(says(
        message_of([&] { ddp(ones(), std::string("a")).sum().backward(); }),
        "'b', which had one in the first pass"));
    EXPECT_TRUE(says(
        message_of([&] { ddp(ones(), std::string("abc")).sum().backward(); }),
        "'c' got gradient 1 of one backward; expected 0"));
  });
}

TEST_F(ReductionTest, BucketsFollowTheOrderOfTheFirstBackward) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    DistributedDataParallel ddp(model,
                                options_over(world, {.bucket_cap_mib = 1e-6}));
    std::vector<std::string> order;
    std::vector<size_t> indices;
    ddp.set_comm_hook([&](const GradientBucket& bucket) -> ReducedBucket {
      indices.push_back(bucket.index());
      for (const Tensor& parameter : bucket.parameters()) {
        for (const auto& item : model->named_parameters()) {
          if (item.value().is_same(parameter)) order.push_back(item.key());
        }
      }
      EXPECT_EQ(bucket.is_last(),
                bucket.index() + 1 == model->parameters().size());
      return [values = bucket.buffer()] { return values; };
    });
    const auto pass = [&] {
      order.clear();
      indices.clear();
      ddp(batch(0, 0)).sum().backward();
      std::vector<size_t> ascending(indices.size());
      std::iota(ascending.begin(), ascending.end(), size_t{0});
      EXPECT_EQ(indices, ascending);
      return order;
    };
    // From the end of the registration on, then as backward comes to them:
    // `first` is used last, so that it has its gradients first.
    EXPECT_EQ(pass().front(), "last.bias");
    const auto second = pass();
    EXPECT_EQ(second.size(), 6U);
    EXPECT_EQ(second.front().substr(0, 5), "first");
    EXPECT_EQ(second.back().substr(0, 4), "last");
    EXPECT_EQ(pass(), second);
  });
}

TEST_F(ReductionTest, CompressedMeansAreRoundedOnce) {
  on_ranks(2, [](const World& world) {
    const std::array hooks = {
        std::pair(&comm_hooks::fp16_compress, torch::kHalf),
        std::pair(&comm_hooks::bf16_compress, torch::kBFloat16)};
    for (const auto& [make_hook, dtype] : hooks) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(net, options_over(world));
      ddp.set_comm_hook(make_hook(ddp.process_group()));
      const double value = 1.0 / 7;
      ddp(torch::full({1, 6}, value), std::string("abc")).sum().backward();
      // Both ranks have the same, and half of it is exact again.
      const double rounded = torch::full({}, value * 12)
                                 .to(dtype)
                                 .to(torch::kDouble)
                                 .item<double>();
      EXPECT_NE(rounded, value * 12);
      EXPECT_TRUE(is_all(net->a.grad(), rounded)) << net->a.grad();
      EXPECT_EQ(net->a.grad().scalar_type(), torch::kDouble);
    }
  });
}

TEST_F(ReductionTest, AHooksResultIsTakenAsItIs) {
  for (const auto memory : {GradientMemory::own, GradientMemory::bucket}) {
    on_ranks(2, [&](const World& world) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.gradient_memory = memory}));
      int ended = 0;
      ddp.set_comm_hook([&](const GradientBucket& bucket) -> ReducedBucket {
        EXPECT_TRUE(is_all(bucket.gradients().back(), 12 * (1 + world.rank())));
        return [&, values = bucket.buffer()] {
          ++ended;
          return values * 10;
        };
      });
      const Tensor x = torch::full({1, 6}, 1.0 + world.rank());
      ddp(x, std::string("abc")).sum().backward();
      EXPECT_EQ(ended, 1);
      EXPECT_TRUE(is_all(net->a.grad(), 120 * (1 + world.rank())));
      EXPECT_TRUE(
          says(message_of([&] { ddp.set_comm_hook(comm_hooks::noop()); }),
               "there is one already"));
    });
  }
}

TEST_F(ReductionTest, HooksThatGiveNothingOfUseAreErrors) {
  on_ranks(1, [](const World& world) {
    const auto wrong = [&](const CommHook& hook) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(net, options_over(world));
      ddp.set_comm_hook(hook);
      return message_of(
          [&] { ddp(ones(), std::string("abc")).sum().backward(); });
    };
    EXPECT_TRUE(says(wrong([](const GradientBucket&) { return nullptr; }),
                     "returned no function"));
    EXPECT_TRUE(says(wrong([](const GradientBucket&) {
                       return [] { return torch::ones({3}); };
                     }),
                     "result has 3 elements; its bucket has 18"));
    EXPECT_TRUE(says(wrong([](const GradientBucket&) -> ReducedBucket {
                       throw InvalidState("the hook's own");
                     }),
                     "the hook's own"));
  });
}

}  // namespace
}  // namespace tessera::test
