// The optimizer inside of backward: the same steps as after it, earlier.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optim/adamw.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/optim/grad_scaler.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

class BackwardStepping : public DoubleByDefault {};

/// All of its parameters get gradients, so units complete within backward.
///
///   x -> a -> b -> c
struct ChainImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  ChainImpl() {
    a = register_module("a", nn::Linear(6, 7));
    b = register_module("b", nn::Linear(7, 7));
    c = register_module("c", nn::Linear(7, 3));
  }
  Tensor forward(const Tensor& x) {
    return c(torch::tanh(b(torch::tanh(a(x)))));
  }
};

Model make_chain() { return std::make_shared<ChainImpl>(); }
ChainImpl& as_chain(nn::Module& module) {
  return dynamic_cast<ChainImpl&>(module);
}
Tensor chain_loss(nn::Module& module, const Turn& turn) {
  return square_loss(as_chain(module).forward(input(turn)));
}

const std::vector<std::string> kChainUnits = {"a", "b", "c"};

AdamW make_adamw(const nn::Module& model) {
  return AdamW(model.parameters(),
               torch::optim::AdamWOptions(0.05).weight_decay(0.1));
}

enum class When { in_backward, after };

void put_in_backward(nn::Module& model, AdamW& optimizer) {
  step_in_backward(model,
                   [&](const auto& shards) { optimizer.step_only(shards); });
}

/// Every loop of these tests: three micro-batches a step, reduced once.
void train(const World& world, nn::Module& model, const Loss& loss, When when,
           int num_steps = 4) {
  AdamW optimizer = make_adamw(model);
  if (when == When::in_backward) put_in_backward(model, optimizer);
  for (int step = 0; step < num_steps; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      set_requires_gradient_sync(model, micro == 2 ? Sync::on : Sync::off);
      loss(model, {world.rank(), 3 * step + micro, 1}).backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
}

Tensors full_weights(nn::Module& model) {
  Tensors weights;
  const FullParameters scope(model, Write::discard);
  for (const auto& item : model.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

void expect_same(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, weight] : expected) {
    EXPECT_TRUE(got.at(name).equal(weight)) << name;
  }
}

/// Both ways of training must give the same weights, to the bit: an update is
/// elementwise.
void expect_no_difference(const World& world,
                          const std::function<Model()>& make,
                          const Loss& loss) {
  Model after = make();
  train(world, *after, loss, When::after);
  Model within = make();
  train(world, *within, loss, When::in_backward);
  expect_same(full_weights(*within), full_weights(*after));
}

Model sharded_chain(const World& world) {
  return build_sharded(world, make_chain, kChainUnits);
}

TEST_F(BackwardStepping, GivesTheWeightsOfStepsAfterBackward) {
  for (const int world_size : {1, 2, 3}) {
    on_ranks(world_size, [&](const World& world) {
      expect_no_difference(
          world, [&] { return sharded_chain(world); }, chain_loss);
      // Units whose `extra` gets no gradient are never complete.
      expect_no_difference(
          world, [&] { return build_sharded(world, make_net, kUnits); },
          plain_loss);
    });
  }
}

TEST_F(BackwardStepping, GivesTheWeightsOfStepsAfterBackwardWithReplicas) {
  on_ranks(4, [&](const World& world) {
    const auto mesh = init_device_mesh(
        world, {.shape = {2, 2}, .axes = {"dp_replicate", "dp_shard"}});
    expect_no_difference(
        world,
        [&] {
          Model model = build(make_chain);
          shard(*model, options_for(mesh), kChainUnits);
          return model;
        },
        chain_loss);
  });
}

TEST_F(BackwardStepping, GivesTheSameWeightsWithEveryOption) {
  using Change = std::function<void(FullyShardOptions&)>;
  const std::map<std::string, Change> changes = {
      {"prefetch", [](auto& options) { options.prefetch = 2; }},
      {"kept", [](auto& o) { o.reshard_after_forward = Reshard::never; }},
      {"kept by 2", [](auto& options) { options.reshard_after_forward = 2; }},
      {"offload", [](auto& options) { options.offload_policy.emplace(false); }},
      {"bf16",
       [](auto& options) {
         options.mp_policy = {.param_dtype = torch::kBFloat16,
                              .reduce_dtype = torch::kFloat32};
       }},
      {"other dim",
       [](auto& options) {
         options.shard_placement_fn = [](const Tensor& parameter) {
           return Shard{parameter.dim() - 1};
         };
       }},
  };
  on_ranks(4, [&](const World& world) {
    for (const auto& [name, change] : changes) {
      SCOPED_TRACE(name);
      FullyShardOptions options = options_for(init_device_mesh(world));
      change(options);
      const auto make = [&] {
        Model model = build(make_chain);
        shard(*model, options, kChainUnits);
        return model;
      };
      expect_no_difference(world, make, chain_loss);
    }
    const auto make_whole = [&] {
      Model model = build(make_chain);
      replicate(*model, options_for(init_device_mesh(world)));
      return model;
    };
    expect_no_difference(world, make_whole, chain_loss);
  });
}

/// For each step in one backward: the unit's first shard, and how many
/// parameters of the whole model then held gradients.
struct Seen {
  std::string name;
  size_t num_gradients;
  bool backward_is_through;
};

std::vector<Seen> watch_backward(const World& world, nn::Module& model,
                                 AdamW& optimizer, int step) {
  std::vector<Seen> seen;
  bool first_layer_is_through = false;
  step_in_backward(model, [&](const std::vector<Tensor>& shards) {
    size_t num_gradients = 0;
    for (const Tensor& shard : model.parameters()) {
      if (shard.grad().defined()) ++num_gradients;
    }
    seen.push_back({spread_of(shards.front())->name, num_gradients,
                    first_layer_is_through});
    optimizer.step_only(shards);
  });
  const Tensor x = input({world.rank(), step, 1}).requires_grad_();
  x.register_hook([&](const Tensor&) { first_layer_is_through = true; });
  square_loss(as_chain(model).forward(x)).backward();
  return seen;
}

TEST_F(BackwardStepping, StepsWhileBackwardGoesOnFromTheSecondTimeOn) {
  on_ranks(2, [&](const World& world) {
    Model model = sharded_chain(world);
    AdamW optimizer = make_adamw(*model);
    for (const Seen& first : watch_backward(world, *model, optimizer, 0)) {
      EXPECT_TRUE(first.backward_is_through) << first.name;
    }
    const auto seen = watch_backward(world, *model, optimizer, 1);
    ASSERT_EQ(seen.size(), 3u);
    EXPECT_EQ(seen[0].name, "c.weight");
    EXPECT_EQ(seen[1].name, "b.weight");
    EXPECT_EQ(seen[2].name, "a.weight");
    EXPECT_FALSE(seen[0].backward_is_through);
  });
}

TEST_F(BackwardStepping, HoldsTheGradientsOfOneUnitAtATime) {
  on_ranks(2, [&](const World& world) {
    Model model = sharded_chain(world);
    AdamW optimizer = make_adamw(*model);
    for (int step = 0; step < 3; ++step) {
      for (const Seen& seen : watch_backward(world, *model, optimizer, step)) {
        EXPECT_EQ(seen.num_gradients, 2u) << seen.name << ", step " << step;
      }
      for (const Tensor& shard : model->parameters()) {
        EXPECT_FALSE(shard.grad().defined());
      }
    }
  });
}

/// One unit of two layers, the first of them frozen, with another between:
///
///   x -> lift -> frozen -> middle -> last
struct WrappedImpl : nn::Module {
  nn::Linear lift{nullptr}, frozen{nullptr}, middle{nullptr}, last{nullptr};
  WrappedImpl() {
    lift = register_module("lift", nn::Linear(6, 6));
    frozen = register_module("frozen", nn::Linear(6, 6));
    middle = register_module("middle", nn::Linear(6, 6));
    last = register_module("last", nn::Linear(6, 3));
    for (Tensor& p : frozen->parameters()) p.requires_grad_(false);
  }
};

Model make_wrapped() { return std::make_shared<WrappedImpl>(); }

enum class Way { whole, around_the_frozen };

Tensor wrapped_loss(nn::Module& module, const Turn& turn, Way way) {
  auto& net = dynamic_cast<WrappedImpl&>(module);
  Tensor x = net.lift(input(turn));
  if (way == Way::whole) x = net.frozen(x);
  return square_loss(net.last(torch::tanh(net.middle(x))));
}

Model sharded_wrapped(const World& world) {
  Model model = build(make_wrapped);
  auto& net = dynamic_cast<WrappedImpl&>(*model);
  const auto options = options_for(init_device_mesh(world));
  fully_shard({&*net.frozen, &*net.last}, options);
  fully_shard(*net.lift, options);
  fully_shard(*net.middle, options);
  fully_shard(*model, options);
  return model;
}

TEST_F(BackwardStepping, WaitsForTheEndWhereAUnitIsReadAfterItsReduction) {
  on_ranks(2, [&](const World& world) {
    const auto make = [&] {
      Model model = sharded_wrapped(world);
      // Gathered last at first, the wrapping unit is reduced first from now on.
      const torch::NoGradGuard no_grad;
      (void)wrapped_loss(*model, {world.rank(), 0, 1}, Way::around_the_frozen);
      return model;
    };
    expect_no_difference(world, make, [](nn::Module& module, const Turn& turn) {
      return wrapped_loss(module, turn, Way::whole);
    });
  });
}

TEST_F(BackwardStepping, RefusesABackwardThatNeedsASteppedUnitAgain) {
  on_ranks(2, [&](const World& world) {
    Model model = sharded_wrapped(world);
    AdamW optimizer = make_adamw(*model);
    put_in_backward(*model, optimizer);
    const auto backward = [&](int step, Way way) {
      wrapped_loss(*model, {world.rank(), step, 1}, way).backward();
    };
    backward(0, Way::around_the_frozen);
    backward(1, Way::around_the_frozen);
    EXPECT_TRUE(says(message_of([&] { backward(2, Way::whole); }),
                     "is needed again after its optimizer step"));
    EXPECT_NO_THROW(backward(3, Way::whole));
  });
}

TEST_F(BackwardStepping, LeavesGradientsToHooksFirst) {
  on_ranks(2, [&](const World& world) {
    int num_sums = 0;
    int num_gradients = 0;
    const auto make = [&] {
      Model model = sharded_chain(world);
      set_all_reduce_hook(*as_chain(*model).b, [&](const Tensor& sum) {
        ++num_sums;
        sum.mul_(0.5);
      });
      for (Tensor& shard : as_chain(*model).c->parameters()) {
        shard.register_hook([&](const Tensor& grad) {
          ++num_gradients;
          return grad * 2;
        });
      }
      return model;
    };
    expect_no_difference(world, make, chain_loss);
    EXPECT_EQ(num_sums, 2 * 4);           // both ways, each step
    EXPECT_EQ(num_gradients, 2 * 4 * 2);  // of weight and bias
  });
}

TEST_F(BackwardStepping, RunsHooksAtTheEndWhereTheyMayCommunicate) {
  on_ranks(2, [&](const World& world) {
    Model model = sharded_chain(world);
    AdamW optimizer = make_adamw(*model);
    set_all_reduce_hook(*as_chain(*model).c, [](const Tensor&) {});
    as_chain(*model).b->parameters()[0].register_hook([](const Tensor&) {});
    (void)watch_backward(world, *model, optimizer, 0);
    for (const Seen& seen : watch_backward(world, *model, optimizer, 1)) {
      EXPECT_TRUE(seen.backward_is_through) << seen.name;
    }
  });
}

TEST_F(BackwardStepping, IsRefusedByWhatNeedsAllGradientsFirst) {
  on_ranks(2, [&](const World& world) {
    Model model = sharded_chain(world);
    AdamW optimizer = make_adamw(*model);
    put_in_backward(*model, optimizer);
    chain_loss(*model, {world.rank(), 0, 1}).backward();
    const auto parameters = model->parameters();
    EXPECT_TRUE(says(message_of([&] { clip_grad_norm_(parameters, 1.0); }),
                     "stepped inside of backward"));
    EXPECT_TRUE(says(message_of([&] { (void)get_total_norm(parameters); }),
                     "stepped inside of backward"));
    GradScaler scaler;
    scaler.scale(chain_loss(*model, {world.rank(), 1, 1})).backward();
    EXPECT_TRUE(says(message_of([&] { scaler.unscale_(optimizer); }),
                     "stepped inside of backward"));
    step_in_backward(*model, nullptr);
    chain_loss(*model, {world.rank(), 2, 1}).backward();
    EXPECT_GT(clip_grad_norm_(parameters, 1.0).item<double>(), 0);
  });
}

enum class Batch { good, fails_in_backward, left_out };

void train_one(const World& world, nn::Module& model, int step, Batch batch) {
  if (batch == Batch::left_out) return;
  auto& chain = as_chain(model);
  const Tensor hidden =
      chain.a(input({world.rank(), step, 1}).requires_grad_());
  if (batch == Batch::fails_in_backward) {
    hidden.register_hook([](const Tensor&) -> Tensor {
      throw std::runtime_error("a bad hook");
    });
  }
  const Tensor loss = square_loss(chain.c(chain.b(hidden)));
  if (batch == Batch::fails_in_backward) {
    EXPECT_ANY_THROW(loss.backward());
  } else {
    loss.backward();
  }
  for (const Tensor& shard : model.parameters()) {
    EXPECT_FALSE(shard.grad().defined());
  }
}

// The first backward steps at its end, so what has arrived by the failure is
// lost, like the batch.
TEST_F(BackwardStepping, GoesOnAfterABackwardThatFailed) {
  on_ranks(2, [&](const World& world) {
    std::vector<Tensors> weights;
    for (const Batch first : {Batch::fails_in_backward, Batch::left_out}) {
      Model model = sharded_chain(world);
      AdamW optimizer = make_adamw(*model);
      put_in_backward(*model, optimizer);
      train_one(world, *model, 0, first);
      train_one(world, *model, 1, Batch::good);
      train_one(world, *model, 2, Batch::good);
      weights.push_back(full_weights(*model));
      train_one(world, *model, 3, Batch::fails_in_backward);
      train_one(world, *model, 4, Batch::good);
    }
    expect_same(weights[0], weights[1]);
  });
}

}  // namespace
}  // namespace tessera::test
