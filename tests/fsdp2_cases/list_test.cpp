// Rows of FSDP2's own test suite that no other test here is about;
// docs/differences_from_fsdp2.md has all rows.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/collective_log.h"
#include "tessera/module/recompute.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

class Fsdp2List : public DoubleByDefault {};

TEST_F(Fsdp2List, ARootWhoseForwardTakesNoInputTrains) {
  struct Constant : nn::Module {
    nn::Linear layer{nullptr};
    Tensor weight;
    Constant() {
      layer = register_module("layer", nn::Linear(4, 4));
      weight = register_parameter("weight", noise(3, {4, 4}));
    }
    Tensor forward() { return layer(weight).pow(2).mean(); }
  };
  expect_agreement([] { return std::make_shared<Constant>(); },
                   [](nn::Module& module, const Turn&) {
                     return dynamic_cast<Constant&>(module).forward();
                   },
                   {.units = {"layer"}});
}

TEST_F(Fsdp2List, ParametersAreShardsAtEveryMomentWhateverTheResharding) {
  on_ranks(2, [](const World& world) {
    for (const auto reshard_after :
         {Reshard::automatic, Reshard::always, Reshard::never}) {
      Model model = build(make_net);
      auto options = options_for(init_device_mesh(world));
      options.reshard_after_forward = reshard_after;
      shard(*model, options, kUnits);
      const auto expect_shards = [&](const char* when) {
        for (const auto& item : model->named_parameters()) {
          EXPECT_NE(spread_of(item.value()), nullptr) << item.key() << when;
        }
        EXPECT_EQ(as_net(*model).b->f->weight.sizes(), at::IntArrayRef({8, 8}));
      };
      const auto before = model->parameters();
      expect_shards(" before forward");
      const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
      expect_shards(" after forward");
      loss.backward();
      expect_shards(" after backward");
      const auto after = model->parameters();
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(after[i].is_same(before[i]));
      }
    }
  });
}

TEST_F(Fsdp2List, ABackwardThroughAUnitAloneTrainsIt) {
  expect_agreement(make_net,
                   [](nn::Module& module, const Turn& turn) {
                     auto& net = as_net(module);
                     const Tensor x = input(turn);
                     return turn.step == 1 ? square_loss(net.a(x))
                                           : square_loss(net.forward(x));
                   },
                   {.units = kUnits, .steps = 4});
}

TEST_F(Fsdp2List, AModuleUsedTwiceInOneForwardIsReducedOnce) {
  const Loss loss = [](nn::Module& module, const Turn& turn) {
    auto& net = as_net(module);
    const Tensor hidden = net.a(input(turn));
    return square_loss(net.c(net.b(net.b(hidden)))) + net.b(hidden).mean();
  };
  expect_agreement(make_net, loss, {.units = kUnits, .steps = 3});
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    loss(*model, {world.rank(), 0, 1}).backward();
    for (const auto& unit : units_below(*model)) {
      EXPECT_EQ(unit->counts().reduces, 1) << unit->name();
    }
  });
}

TEST_F(Fsdp2List, TwoPartialForwardsServeOneBackward) {
  expect_agreement(make_net,
                   [](nn::Module& module, const Turn& turn) {
                     auto& net = as_net(module);
                     const Tensor first = net.b(net.a(input(turn)));
                     const Tensor second = net.b(net.a(input(later(turn, 7))));
                     return square_loss(first - second);  // not the head
                   },
                   {.units = kUnits});
}

TEST_F(Fsdp2List, NestedUnitsInARecomputedBlockServeTwoForwards) {
  expect_agreement(make_net,
                   [](nn::Module& module, const Turn& turn) {
                     auto& net = as_net(module);
                     const auto run = [&](const Tensor& x) {
                       return recompute(
                           [&](const Tensor& in) { return net.b(net.a(in)); },
                           x);
                     };
                     return square_loss(
                         net.c(run(input(turn)) - run(input(later(turn, 5)))));
                   },
                   {.units = {"a.f", "a", "b.f", "b"}});
}

TEST_F(Fsdp2List, InAWorldOfOneNothingIsCommunicated) {
  on_ranks(1, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const auto before = world.log().last().sequence;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      plain_loss(*model, {0, step, 1}).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_EQ(world.log().last().sequence, before);
  });
}

TEST_F(Fsdp2List, UnshardOfAModuleWithoutUnitDoesNothing) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    nn::Tanh nothing;
    unshard(*nothing);
    unshard(*as_net(*model).a->f);  // inside a unit, none itself
    reshard(*nothing);
    expect_nothing_gathered(*model, "after unshard of no unit");
    plain_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

TEST_F(Fsdp2List, IgnoredParametersStayWholePlainAndUnreduced) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_net);
    auto& net = as_net(*model);
    auto options = options_for(init_device_mesh(world));
    options.ignored_params = net.b->parameters();
    fully_shard(*net.a, options);
    fully_shard(*model, options);
    EXPECT_EQ(spread_of(net.b->gain), nullptr);
    EXPECT_TRUE(net.b->gain.is_same(model->named_parameters()["b.gain"]));
    plain_loss(*model, {world.rank(), 0, 1}).backward();

    Model plain = build(make_net);  // this rank's own
    plain_loss(*plain, {world.rank(), 0, 1}).backward();
    const Tensors own = plain_gradients(*plain);
    const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
    for (const char* name : {"b.f.weight", "b.f.bias", "b.gain"}) {
      const Tensor gradient = model->named_parameters()[name].grad();
      expect_close(gradient, own.at(name), name);
      EXPECT_GT((gradient - mean.at(name)).abs().max().item<double>(), 1e-6);
    }
    for (const char* name : {"a.f.weight", "a.f.bias", "a.gain"}) {
      const Tensor shard = model->named_parameters()[name];
      if (shard.numel() == 0) continue;
      const Box& box = spread_of(shard)->boxes.at(0);
      const Tensor part =
          mean.at(name).narrow(0, box.offsets[0], box.lengths[0]);
      expect_close(local(shard.grad()).view(part.sizes()), part, name);
    }
  });
}

}  // namespace
}  // namespace tessera::test
