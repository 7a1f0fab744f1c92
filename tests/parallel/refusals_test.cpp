// What DistributedDataParallel does not take, and how failures end.
#include <cmath>

#include "tessera/module/on_meta.h"
#include "tessera/shard/fully_shard.h"
#include "tests/parallel/support.h"

namespace tessera::test {
namespace {

using Ddp = DistributedDataParallel<std::shared_ptr<ChainImpl>>;

class RefusalsTest : public DoubleByDefault {};

std::string message_of_wrapping(const World& world, const Model& model,
                                const DataParallelOptions& options) {
  (void)world;
  return message_of([&] { const Ddp ddp(as_chain(model), options); });
}

TEST_F(RefusalsTest, UnlikeModelsAreNamedOnAllRanks) {
  on_ranks(3, [](const World& world) {
    const Model model = build(make_chain);
    if (world.rank() == 2) {
      as_chain(model)->middle->weight.set_data(torch::zeros({7, 4}));
    }
    const std::string message =
        message_of_wrapping(world, model, options_over(world));
    EXPECT_TRUE(says(message, "'middle.weight' [7, 5] Double"));
    EXPECT_TRUE(says(message, "on rank 0 and 'middle.weight' [7, 4]"));
    EXPECT_TRUE(says(message, "on rank 2"));
  });
  on_ranks(2, [](const World& world) {
    const Model model = build(make_chain);
    if (world.rank() == 1) {
      model->register_buffer("more", torch::zeros({2}));
    }
    EXPECT_TRUE(says(message_of_wrapping(world, model, options_over(world)),
                     "nothing on rank 0 and 'more' [2] Double"));
  });
}

TEST_F(RefusalsTest,
       ModelsThatAreFrozenElsewhereOrWrappedInAnotherWayAreNamed) {
  on_ranks(2, [](const World& world) {
    const Model model = build(make_chain);
    as_chain(model)->first->bias.requires_grad_(world.rank() == 0);
    EXPECT_TRUE(says(message_of_wrapping(world, model, options_over(world)),
                     "strides [1], trained on rank 0 and 'first.bias'"));
    const Model other = build(make_chain);
    EXPECT_TRUE(
        says(message_of_wrapping(
                 world, other,
                 options_over(world, {.bucket_cap_mib = 1.0 + world.rank()})),
             "bucket_cap_mib 1"));
    EXPECT_TRUE(says(
        message_of_wrapping(world, other,
                            options_over(world, {.bucket_cap_mib = INFINITY})),
        "up to 1"));
  });
}

TEST_F(RefusalsTest, OptionsThatContradictEachOtherAreErrors) {
  on_ranks(2, [](const World& world) {
    const Model model = build(make_chain);
    const auto group = distributed::new_group(world);
    EXPECT_TRUE(says(message_of_wrapping(world, model, {}),
                     "give a mesh or a group, and not both"));
    EXPECT_TRUE(says(message_of_wrapping(world, model,
                                         options_over(world, {.group = group})),
                     "give a mesh or a group, and not both"));
    const auto mesh = init_device_mesh(
        world, {.shape = {1, 2}, .axes = {"dp_replicate", "dp_shard"}});
    EXPECT_TRUE(says(message_of_wrapping(world, model, {.mesh = mesh}),
                     "give one axis of it: mesh[\"dp_replicate\"]"));
    EXPECT_TRUE(
        says(message_of_wrapping(world, model,
                                 options_over(world, {.bucket_cap_mib = 0})),
             "bucket_cap_mib is 0; give more than 0"));
    EXPECT_EQ(message_of_wrapping(world, model, {.group = group}), "");
  });
}

TEST_F(RefusalsTest, ModelsThatCannotBeReducedAreErrors) {
  on_ranks(2, [](const World& world) {
    const Model frozen = build(make_chain);
    for (auto& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_TRUE(says(message_of_wrapping(world, frozen, options_over(world)),
                     "no parameter that requires a gradient"));
    const Model computed = build(make_chain);
    computed->register_parameter("twice",
                                 as_chain(computed)->first->bias.mul(2));
    EXPECT_TRUE(says(message_of_wrapping(world, computed, options_over(world)),
                     "'twice' was computed by autograd"));
    const Model meta = on_meta(make_chain);
    EXPECT_TRUE(says(message_of_wrapping(world, meta, options_over(world)),
                     "'first.weight' is on the meta device"));
    const Model sharded = build(make_chain);
    fully_shard(*as_chain(sharded)->last, {.mesh = init_device_mesh(world)});
    EXPECT_TRUE(says(message_of_wrapping(world, sharded, options_over(world)),
                     "'last.weight' is sharded; name it in"));
  });
}

TEST_F(RefusalsTest, IgnoredParametersMayBeShardedByFullyShard) {
  const Model plain = build(make_chain);
  const Tensors want = mean_gradients(
      2,
      [](ChainImpl& m, int rank) {
        return m.forward(batch(rank, 0)).square().mean();
      },
      plain);
  on_ranks(2, [&](const World& world) {
    const auto model = as_chain(build(make_chain));
    fully_shard(*model->last, {.mesh = init_device_mesh(world)});
    Ddp ddp(model,
            options_over(world, {.ignored_params = model->last->parameters()}));
    ddp(batch(world.rank(), 0)).square().mean().backward();
    expect_close(model->first->weight.grad(), want.at("first.weight"),
                 "reduced");
    expect_close(full_gradients(world, *model->last).at("weight"),
                 want.at("last.weight"), "sharded");
  });
}

struct InnerImpl : nn::Module {
  nn::Linear c{register_module("c", nn::Linear(8, 8))};
  Tensor forward(const Tensor& x) { return torch::tanh(c(x)); }
};
struct MiddleImpl : nn::Module {
  nn::Linear b{register_module("b", nn::Linear(8, 8))};
  std::shared_ptr<InnerImpl> inner{
      register_module("inner", std::make_shared<InnerImpl>())};
  Tensor forward(const Tensor& x) { return inner->forward(b(x)); }
};
struct OuterImpl : nn::Module {
  nn::Linear a{register_module("a", nn::Linear(6, 8))};
  std::shared_ptr<MiddleImpl> middle{
      register_module("middle", std::make_shared<MiddleImpl>())};
  Tensor forward(const Tensor& x) { return middle->forward(a(x)); }
};

TEST_F(RefusalsTest, APartOfAModelMayBeShardedAndAPartOfThatNot) {
  const Make make = [] { return std::make_shared<OuterImpl>(); };
  const test::Setup setup = {.steps = 3};
  const Record want = train_plain(
      3, make,
      [](nn::Module& module, const Turn& turn) {
        return dynamic_cast<OuterImpl&>(module)
            .forward(batch(turn.rank, turn.step))
            .square()
            .mean();
      },
      setup);
  on_ranks(3, [&](const World& world) {
    const auto model = std::dynamic_pointer_cast<OuterImpl>(build(make));
    auto& middle = *model->middle;
    fully_shard(middle, {.mesh = init_device_mesh(world),
                         .ignored_params = middle.inner->parameters()});
    DistributedDataParallel ddp(
        model, options_over(world, {.ignored_params = middle.b->parameters()}));
    const auto optimizer = make_sgd(model->parameters());
    for (int step = 0; step < setup.steps; ++step) {
      optimizer->zero_grad();
      const Tensor loss = ddp(batch(world.rank(), step)).square().mean();
      loss.backward();
      optimizer->step();
      EXPECT_NEAR(mean_over_ranks(world, loss.item<double>()),
                  want.losses[step], 1e-9);
      expect_close(full_values(*model), want.values[step], "values");
    }
  });
}

TEST_F(RefusalsTest, FreezingOrCastingAWrappedParameterIsAnError) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Ddp ddp(model, options_over(world));
    ddp(batch(world.rank(), 0)).sum().backward();
    model->first->bias.requires_grad_(false);
    EXPECT_TRUE(says(message_of([&] { (void)ddp(batch(world.rank(), 0)); }),
                     "'first.bias' no longer requires a gradient"));
    model->first->bias.requires_grad_(true);
    ddp(batch(world.rank(), 0)).sum().backward();
    model->to(torch::kFloat);
    EXPECT_TRUE(says(message_of([&] {
                       (void)ddp(batch(world.rank(), 0).to(torch::kFloat));
                     }),
                     "has another dtype or device"));
  });
}

TEST_F(RefusalsTest, ABackwardOutlivingItsWrapperIsAnError) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Tensor loss;
    {
      Ddp ddp(model, options_over(world));
      loss = ddp(batch(world.rank(), 0)).sum();
    }
    EXPECT_TRUE(says(message_of([&] { loss.backward(); }), "it is gone"));
    // The module is as it was, without hooks.
    model->zero_grad();
    model->forward(batch(world.rank(), 0)).sum().backward();
    EXPECT_TRUE(model->first->bias.grad().defined());
  });
}

TEST_F(RefusalsTest, SparseAndDifferentiableGradientsAreErrors) {
  on_ranks(1, [](const World& world) {
    struct WordsImpl : nn::Module {
      nn::Embedding words{register_module(
          "words", nn::Embedding(nn::EmbeddingOptions(9, 4).sparse(true)))};
      Tensor forward(const Tensor& x) { return words(x); }
    };
    const auto net = std::make_shared<WordsImpl>();
    DistributedDataParallel sparse(net, options_over(world));
    EXPECT_TRUE(
        says(message_of([&] {
               sparse(torch::tensor({1, 2}, torch::kLong)).sum().backward();
             }),
             "parameter of [9, 4] is sparse; use layers"));
    Ddp ddp(as_chain(build(make_chain)), options_over(world));
    EXPECT_TRUE(says(message_of([&] {
                       ddp(batch(0, 0))
                           .square()
                           .sum()
                           .backward({}, true, /*create_graph=*/true);
                     }),
                     "to be differentiated again; call"));
  });
}

TEST_F(RefusalsTest, AnErrorInOneRanksBackwardEndsTheOthersAndIsNamed) {
  const std::string message = message_of([] {
    on_ranks(3, [](const World& world) {
      const auto model = as_chain(build(make_chain));
      Ddp ddp(model, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
      ddp(batch(world.rank(), 0)).sum().backward();
      if (world.rank() == 1) {
        model->last->weight.register_hook([](const Tensor&) -> Tensor {
          throw InvalidState("this hook fails");
        });
      }
      ddp(batch(world.rank(), 1)).sum().backward();
    });
  });
  EXPECT_TRUE(says(message, "rank 1"));
  EXPECT_TRUE(says(message, "this hook fails"));
}

TEST_F(RefusalsTest, AfterABackwardThatFailedOnAllRanksTrainingGoesOn) {
  on_ranks(2, [](const World& world) {
    const auto model = as_chain(build(make_chain));
    Ddp ddp(model, options_over(world, {.bucket_cap_mib = kSmallBuckets}));
    bool fails = true;
    model->middle->weight.register_hook([&](const Tensor& gradient) {
      if (fails) throw std::runtime_error("this time");
      return gradient;
    });
    EXPECT_TRUE(
        says(message_of([&] { ddp(batch(world.rank(), 0)).sum().backward(); }),
             "this time"));
    fails = false;
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      ddp(batch(world.rank(), 0)).sum().backward();
      const auto alone = as_chain(build(make_chain));
      for (int rank = 0; rank < 2; ++rank) {
        (alone->forward(batch(rank, 0)).sum() / 2).backward();
      }
      expect_close(plain_gradients(*model), plain_gradients(*alone),
                   "gradients");
    }
  });
}

}  // namespace
}  // namespace tessera::test
