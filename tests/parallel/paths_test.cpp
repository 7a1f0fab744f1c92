// Backward passes that come to parameters by another way than an output, or not
// as far.
#include "tests/parallel/pick.h"

namespace tessera::test {
namespace {

class PathsTest : public DoubleByDefault {};

TEST_F(PathsTest, GradientsAskedForByNameStayOnTheirRank) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(net, options_over(world));
    const Tensor x = torch::full({1, 6}, 1.0 + world.rank());
    const Tensor loss = ddp(x, std::string("abc")).sum();
    const auto grads =
        torch::autograd::grad({loss}, {net->a}, {}, /*retain_graph=*/true);
    EXPECT_TRUE(is_all(grads[0], 12.0 * (1 + world.rank())));
    EXPECT_FALSE(net->a.grad().defined());
    EXPECT_TRUE(says(message_of([&] {
                       torch::autograd::backward({loss}, {}, true, false,
                                                 {net->a});
                     }),
                     "'a' got a gradient in a backward for some inputs only"));
    net->zero_grad();
    loss.backward();
    EXPECT_TRUE(is_all(net->a.grad(), 18));
  });
}

TEST_F(PathsTest, GradientsOfAnOutputStayOnTheirRank) {
  for (const auto unused : {UnusedParameters::error, UnusedParameters::find}) {
    on_ranks(2, [&](const World& world) {
      const auto net = std::make_shared<PickImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.unused_parameters = unused}));
      net->a.mutable_grad() = torch::full({6}, 1.0 + world.rank());
      const Tensor out = ddp(ones(), std::string("abc"));
      const Tensor loss = out.square().sum();
      EXPECT_TRUE(is_all(
          torch::autograd::grad({loss}, {out}, {}, /*retain_graph=*/true)[0],
          48));
      EXPECT_TRUE(is_all(net->a.grad(), 1.0 + world.rank()));
      net->zero_grad();
      loss.backward();
      EXPECT_TRUE(is_all(net->a.grad(), 48 * 12));
    });
  }
}

/// y is written in place behind the forward, so that autograd gives it another
/// node.
TEST_F(PathsTest, AnOutputThatIsAViewMayBeWrittenInPlace) {
  struct ViewImpl : PickImpl {
    Tensor forward(const Tensor& x) {
      return PickImpl::forward(x, "abc").view({6});
    }
  };
  for (const auto unused : {UnusedParameters::error, UnusedParameters::find}) {
    on_ranks(2, [&](const World& world) {
      const auto net = std::make_shared<ViewImpl>();
      DistributedDataParallel ddp(
          net, options_over(world, {.unused_parameters = unused}));
      {
        const NoSync no_sync = ddp.no_sync();
        (void)ddp(ones());
      }
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        Tensor out = ddp(torch::full({1, 6}, 1.0 + world.rank()));
        out -= 1;
        out.select(0, 3).mul_(2);
        out.sum().backward();
        EXPECT_DOUBLE_EQ(net->a.grad()[0].item<double>(), 18);
        EXPECT_DOUBLE_EQ(net->a.grad()[3].item<double>(), 36);
      }
    });
  }
}

TEST_F(PathsTest, GradientsThatComeBeforeOrWithoutAnOutputReduce) {
  struct KeepsImpl : PickImpl {
    Tensor kept;
    Tensor forward(const Tensor& x) {
      const Tensor out = PickImpl::forward(x, "ac");
      // Later, so that backward comes to it first.
      kept = (x * b).sum();
      return out;
    }
  };
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<KeepsImpl>();
    DistributedDataParallel ddp(
        net, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const Tensor x = torch::full({1, 6}, 1.0 + world.rank());
      const Tensor loss = ddp(x).sum();
      (loss + net->kept * 3).backward();
      EXPECT_TRUE(is_all(net->b.grad(), 4.5));
      EXPECT_TRUE(is_all(net->a.grad(), 6));
    }
    // A penalty on the gradient of the input alone.
    net->zero_grad();
    const Tensor x = torch::full({1, 6}, 1.0 + world.rank()).requires_grad_();
    const Tensor out = ddp(x * x);
    const Tensor slope = torch::autograd::grad({out.sum() + net->kept}, {x}, {},
                                               true, /*create_graph=*/true)[0];
    slope.sum().backward();
    // 2 x a c + 2 x b, x 1 and 2.
    EXPECT_TRUE(is_all(net->a.grad(), 3 * 4));
    EXPECT_TRUE(is_all(net->b.grad(), 3));
  });
}

TEST_F(PathsTest, AGradientThatNoForwardLedToIsAnError) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(net, options_over(world));
    const auto direct = [&] { net->forward(ones(), "abc").sum().backward(); };
    EXPECT_TRUE(says(message_of(direct), "no forward of the wrapper led to"));
    net->zero_grad();
    ddp(ones(), std::string("abc")).sum().backward();
    EXPECT_TRUE(says(message_of(direct), "call the wrapper instead"));
  });
}

TEST_F(PathsTest, WhatNobodyUsesStaysAlsoWhereItLiesInABucket) {
  on_ranks(2, [](const World& world) {
    const auto net = std::make_shared<PickImpl>();
    DistributedDataParallel ddp(
        net, options_over(world, {.unused_parameters = UnusedParameters::find,
                                  .gradient_memory = GradientMemory::bucket}));
    ddp.set_comm_hook([&](const GradientBucket& bucket) -> ReducedBucket {
      // A sum, which would grow with each pass.
      distributed::all_reduce(bucket.buffer(), ddp.process_group()).wait();
      return [values = bucket.buffer()] { return values; };
    });
    ddp(ones(), std::string("abc")).sum().backward();
    for (int step = 0; step < 3; ++step) {
      ddp(ones(), std::string("a")).sum().backward();
      EXPECT_TRUE(is_all(net->b.grad(), 16));
    }
    ddp(ones(), std::string("ab")).sum().backward();
    EXPECT_TRUE(is_all(net->b.grad(), 2 * (16 + 2)));
  });
}

}  // namespace
}  // namespace tessera::test
