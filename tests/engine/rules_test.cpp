// The rules that keep ranks together when they use different parameters, and
// the memory of the flat buffers clean.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/collective_log.h"
#include "tessera/module/gate.h"
#include "tessera/shard/context.h"
#include "tests/support/net.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class Rules : public DoubleByDefault {};

/// Layers of one shape: their gathers cannot be told apart by size.
struct ChainImpl : nn::Module {
  nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  ChainImpl() {
    a = register_module("a", nn::Linear(4, 4));
    b = register_module("b", nn::Linear(4, 4));
    c = register_module("c", nn::Linear(4, 4));
  }
};
Model make_chain() { return std::make_shared<ChainImpl>(); }
ChainImpl& as_chain(nn::Module& module) {
  return dynamic_cast<ChainImpl&>(module);
}

TEST_F(Rules, RanksThatGatherEqualUnitsInAnotherOrderAllEndWithAnError) {
  for (const int world_size : {2, 3}) {
    const std::string message = message_of([&] {
      on_ranks(world_size, [&](const World& world) {
        Model model = build_sharded(world, make_chain, {"a", "b", "c"});
        auto& chain = as_chain(*model);
        const Tensor x = noise(1, {2, 4});
        const Tensor y =
            world.rank() == 1 ? chain.a(chain.b(x)) : chain.b(chain.a(x));
        y.sum().backward();
      });
    });
    EXPECT_TRUE(says(message, "all_gather of unit 'a'"));
    EXPECT_TRUE(says(message, "all_gather of unit 'b'"));
  }
}

// Where the backend itself cannot tell, as NCCL cannot.
TEST_F(Rules, BackwardComparesWhatTheRanksHaveIssued) {
  on_ranks(3, [&](const World& world) {
    Model model = build_sharded(world, make_chain, {"a", "b", "c"});
    auto& chain = as_chain(*model);
    const auto loss = [&] {
      return chain.c(chain.b(chain.a(noise(1, {2, 4})))).sum();
    };
    loss().backward();
    if (world.rank() == 2) {
      auto& log = units_below(*model)[0]->context()->lanes()->gather->log();
      log.finish(log.enter("dp_shard/gather", "all_gather",
                           {.unit = "b", .phase = "forward", .op = "print"}, 16,
                           torch::kDouble));
    }
    const std::string message = message_of([&] { loss().backward(); });
    EXPECT_TRUE(says(message, "have issued different collectives"));
    EXPECT_TRUE(says(message, "unshard"));  // the remedy
    EXPECT_TRUE(says(message, "rank 0: "));
    EXPECT_TRUE(says(message, "rank 2: "));
  });
}

TEST_F(Rules, AShardThatWasGivenOtherMemoryIsReadFromThere) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto& net = as_net(*model);
    {
      // Below set_data, as loaders do that swap storages.
      torch::NoGradGuard no_grad;
      for (const auto& item : net.c->named_parameters()) {
        const Tensor values = torch::full_like(local(item.value()), 0.25);
        auto* shard = item.value().unsafeGetTensorImpl();
        shard->set_storage_keep_dtype(values.storage());
        shard->set_storage_offset(0);
      }
    }
    const Tensor ones = torch::ones({1, 8});
    const Tensor y = net.c(ones);
    expect_close(y, torch::full({1, 3}, 8 * 0.25 + 0.25), "given values");
    y.sum().backward();
    torch::optim::SGD optimizer(model->parameters(), 1.0);
    optimizer.step();
    torch::NoGradGuard no_grad;
    expect_close(net.c(ones), torch::full({1, 3}, 8 * -0.75 - 0.75),
                 "after a step");
  });
}

/// A part of the forward that backward computes again.
struct AgainFunction : torch::autograd::Function<AgainFunction> {
  using Forward = std::function<Tensor(const Tensor&)>;
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x, const Forward* again) {
    context->save_for_backward({x});
    context->saved_data["again"] = reinterpret_cast<int64_t>(again);
    torch::NoGradGuard no_grad;
    return (*again)(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& grads) {
    const torch::AutoGradMode with_grad(true);
    const auto* again =
        reinterpret_cast<const Forward*>(context->saved_data["again"].toInt());
    Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    (*again)(x).backward(grads[0]);
    return {x.grad(), Tensor()};
  }
};

TEST_F(Rules, AUnitThatJoinsInBackwardDoesNotHoldBackTheOthersReductions) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_chain, {"a", "b", "c"});
    auto& chain = as_chain(*model);
    // Without the bias, c waits for a gradient until the end of backward.
    const AgainFunction::Forward last = [&](const Tensor& x) {
      return torch::matmul(x, chain.c->weight.t());
    };
    for (int step = 0; step < 2; ++step) {
      for (const auto& unit : units_below(*model)) unit->reset_counts();
      const Tensor hidden = chain.a(noise(step, {2, 4}));
      const Tensor output = AgainFunction::apply(chain.b(hidden), &last);
      reshard(*chain.c);  // so that c is needed again, and first in backward
      int64_t reduces_of_b = -1;
      hidden.register_hook([&](const Tensor&) {
        reduces_of_b = unit_named(*model, "b").counts().reduces;
      });
      square_loss(output).backward();
      EXPECT_EQ(reduces_of_b, 1) << "step " << step;
      EXPECT_EQ(unit_named(*model, "c").counts().reduces, 1);
    }
  });
}

TEST_F(Rules, AUnitThatWasUnshardedByHandIsReducedThoughOneRankDoesNotUseIt) {
  const Loss loss = [](nn::Module& module, const Turn& turn) {
    auto& net = as_net(module);
    const Tensor hidden = net.a(input(turn));
    return square_loss(net.c(turn.rank == 0 ? net.b(hidden) : hidden));
  };
  for (const int world_size : {2, 3}) {
    const Tensors want = gradients_of_one_process(world_size, make_net, loss);
    on_ranks(world_size, [&](const World& world) {
      Model model = build(make_net);
      FullyShardOptions options = options_for(init_device_mesh(world));
      fully_shard(*as_net(*model).a, options);
      options.reshard_after_forward = Reshard::never;
      fully_shard(*as_net(*model).b, options);
      options.reshard_after_forward = Reshard::automatic;
      fully_shard(*model, options);
      unshard(*as_net(*model).b);
      loss(*model, {world.rank(), 0, 1}).backward();
      expect_close(full_gradients(world, *model), want, "gradient");
    });
  }
}

TEST_F(Rules, NoGapOfAFlatGradientHoldsWhatWasInTheMemoryBefore) {
  for (const int world_size : {2, 3, 4}) {
    on_ranks(world_size, [&](const World& world) {
      Model model = build_sharded(world, make_net, kUnits);
      for (int step = 0; step < 2; ++step) {
        plain_loss(*model, {world.rank(), step, 1}).backward();
      }
      for (const auto& unit : units_below(*model)) {
        for (const auto& group : unit->groups()) {
          GateOff off;
          const Tensor grad = group->master()->grad();
          ASSERT_TRUE(grad.defined());
          EXPECT_TRUE(grad.isfinite().all().item<bool>()) << unit->name();
        }
      }
    });
  }
}

TEST_F(Rules, MicroBatchesWithoutSyncAreAddedInTheReduceDtype) {
  on_ranks(2, [&](const World& world) {
    const auto model = std::dynamic_pointer_cast<nn::LinearImpl>(build([] {
      const auto options = nn::LinearOptions(1, 2).bias(false);
      return std::make_shared<nn::LinearImpl>(options);
    }));
    model->to(torch::kFloat);
    fully_shard(*model, {.mesh = init_device_mesh(world),
                         .mp_policy = {.param_dtype = torch::kBFloat16,
                                       .reduce_dtype = torch::kFloat},
                         .debug = Debug::poison_memory});
    // 256 + 1 is 257, which bf16 rounds to 256.
    for (const float x : {256.0F, 1.0F}) {
      set_requires_gradient_sync(*model, x == 1 ? Sync::on : Sync::off);
      model->forward(torch::full({1, 1}, x, torch::kFloat)).sum().backward();
    }
    const Tensor grad = local(model->parameters()[0].grad());
    EXPECT_TRUE(grad.eq(257).all().item<bool>()) << grad;
  });
}

TEST_F(Rules, AModuleInsideAShardedOneIsRefusedByName) {
  on_ranks(1, [&](const World& world) {
    Model model = build(make_net);
    const auto options = options_for(init_device_mesh(world));
    fully_shard(*as_net(*model).a, options);
    fully_shard(*model, options);
    const std::string message =
        message_of([&] { fully_shard(*as_net(*model).b, options); });
    EXPECT_TRUE(says(message, "lies inside unit"));
    EXPECT_TRUE(says(message, "from the bottom up"));
    EXPECT_TRUE(
        says(message_of([&] { fully_shard(*as_net(*model).b->f, options); }),
             "lies inside unit"));
    EXPECT_TRUE(
        says(message_of([&] { fully_shard(*as_net(*model).a, options); }),
             "was given to fully_shard before"));
    // Nothing has changed.
    EXPECT_EQ(units_below(*model).size(), 2U);
    plain_loss(*model, {0, 0, 1}).backward();
  });
}

}  // namespace
}  // namespace tessera::test
