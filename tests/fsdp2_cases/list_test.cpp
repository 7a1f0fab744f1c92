// Rows of FSDP2's own test suite that no other test here is about;
// docs/differences_from_fsdp2.md has all rows.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/collective_log.h"
#include "tessera/module/recompute.h"
#include "tessera/shard/call.h"
#include "tessera/shard/unit.h"
#include "tessera/shard/unit_settings.h"
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

TEST_F(Fsdp2List, UnitsAndParametersBearTheNamesThatTheRootGives) {
  on_ranks(1, [](const World& world) {
    Model model = build(make_net);
    const auto options = options_for(init_device_mesh(world));
    auto& net = as_net(*model);
    fully_shard({net.a.get(), net.b.get()}, options);
    fully_shard(*model, options);
    EXPECT_EQ(units_of(*net.a).at(0)->name(), "a, b");
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(spread_of(item.value())->name, item.key());
    }
  });
}

TEST_F(Fsdp2List, UnshardOfAModuleWithoutUnitDoesNothing) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto whole = std::make_shared<nn::Module>("whole");
    whole->register_module("net", model);
    fully_shard(*whole, options_for(init_device_mesh(world)));  // none is left
    nn::Tanh nothing;
    unshard(*nothing);
    unshard(*whole);
    reshard(*whole);
    reshard(*nothing);
    expect_nothing_gathered(*model, "after unshard of no unit");
    plain_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

// Gathers and reductions of each unit since the last look. The root's head is
// used last in forward and first in backward.
void expect_counts(nn::Module& model, int gathers, int gathers_of_root,
                   int reduces, const std::string& when) {
  for (const auto& unit : units_below(model)) {
    EXPECT_EQ(unit->counts().gathers,
              unit->parent() ? gathers : gathers_of_root)
        << unit->name() << when;
    EXPECT_EQ(unit->counts().reduces, reduces) << unit->name() << when;
    unit->reset_counts();
  }
}

TEST_F(Fsdp2List, AccumulationGathersAndReducesNoMoreThanItsSettingsAsk) {
  constexpr int kBatches = 3;
  on_ranks(2, [&](const World& world) {
    for (const auto after_forward : {Reshard::always, Reshard::never}) {
      for (const auto after_backward : {Reshard::always, Reshard::never}) {
        Model model = build(make_net);
        auto options = options_for(init_device_mesh(world));
        options.reshard_after_forward = after_forward;
        shard(*model, options, kUnits);
        for (int batch = 0; batch < kBatches; ++batch) {
          const bool last = batch + 1 == kBatches;
          set_requires_gradient_sync(*model, last ? Sync::on : Sync::off);
          set_reshard_after_backward(*model,
                                     last ? Reshard::always : after_backward);
          plain_loss(*model, {world.rank(), batch, 1}).backward();
        }
        const bool in_backward = after_forward == Reshard::always;
        const bool kept = after_backward == Reshard::never;
        expect_counts(
            *model,
            (in_backward ? 2 : 1) * kBatches - (kept ? kBatches - 1 : 0),
            kept ? 1 : kBatches, 1,
            str(" forward resharded: ", in_backward,
                ", kept after backward: ", kept));
        expect_nothing_gathered(*model, "after the last backward");
      }
    }
  });
}

TEST_F(Fsdp2List, UnitsReshardedByHandAfterForwardAreGatheredOnceInBackward) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build(make_net);
    auto options = options_for(init_device_mesh(world));
    options.reshard_after_forward = Reshard::never;
    shard(*model, options, kUnits);
    const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
    for (nn::Module* module :
         {static_cast<nn::Module*>(model.get()),
          static_cast<nn::Module*>(as_net(*model).a.get()),
          static_cast<nn::Module*>(as_net(*model).b.get())}) {
      reshard(*module);
    }
    expect_nothing_gathered(*model, "after reshard");
    expect_counts(*model, 1, 1, 0, " in forward");
    loss.backward();
    expect_counts(*model, 1, 1, 1, " in backward");
    expect_close(full_gradients(world, *model), mean, "gradient");
  });
}

TEST_F(Fsdp2List, AStepsCollectivesComeInTheOrderOfUse) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_net);
    auto options = options_for(init_device_mesh(world));
    options.reshard_after_forward = Reshard::always;
    shard(*model, options, kUnits);
    const uint64_t before = world.log().last().sequence;
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    std::string order;
    for (const CollectiveEntry& entry : world.log().entries()) {
      const bool counts =
          entry.kind == "all_gather" || entry.kind == "reduce_scatter";
      if (entry.sequence <= before || !counts) continue;
      order += str(entry.kind == "all_gather" ? " +" : " -",
                   entry.unit.size() == 1 ? entry.unit : "root");
    }
    EXPECT_EQ(order, " +a +b +root -root +b +a -b -a");
  });
}

// Norm and head are one unit, used once for each chunk of the body's output.
struct ChunkedImpl : nn::Module {
  Block body{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr}, never{nullptr};
  ChunkedImpl() {
    body = register_module("body", Block(6, 8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    head = register_module("head", nn::Linear(8, 3));
    never = register_module("never", nn::Linear(8, 3));
  }
};

Tensor chunked_loss(nn::Module& module, const Turn& turn) {
  auto& model = dynamic_cast<ChunkedImpl&>(module);
  Tensor sum = torch::zeros({});
  for (const Tensor& chunk : model.body(input(turn)).chunk(4)) {
    sum = sum + square_loss(model.head(model.norm(chunk)));
  }
  return sum;
}

TEST_F(Fsdp2List, AUnitOfSeveralModulesServesChunksThoughOneNeverRuns) {
  const Make make = [] { return std::make_shared<ChunkedImpl>(); };
  const Tensors mean = gradients_of_one_process(2, make, chunked_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build(make);
    auto& chunked = dynamic_cast<ChunkedImpl&>(*model);
    const auto options = options_for(init_device_mesh(world));
    fully_shard(*chunked.body, options);
    fully_shard(std::vector<nn::Module*>{chunked.norm.get(), chunked.head.get(),
                                         chunked.never.get()},
                options);
    fully_shard(*model, options);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      chunked_loss(*model, {world.rank(), 0, 1}).backward();
      expect_close(full_gradients(world, *model), mean, "gradient");
      expect_nothing_gathered(*model, "after backward");
    }
  });
}

TEST_F(Fsdp2List, FrozenModulesAreReusedWithAndWithoutGradients) {
  test::Setup setup{.units = kUnits, .steps = 3};
  setup.before = [](nn::Module& module, int step) {
    as_net(module).b->f->weight.set_requires_grad(step == 2);
  };
  expect_agreement(
      make_net,
      [](nn::Module& module, const Turn& turn) {
        auto& net = as_net(module);
        Tensor x = net.a(input(turn));
        {
          torch::NoGradGuard no_grad;
          x = x + net.b(x);
        }
        return square_loss(net.c(net.b(net.b(net.b(x)))));
      },
      setup);
}

TEST_F(Fsdp2List, OneUnitOfAnotherPrecisionComputesInItAndGivesWhatItIsTold) {
  on_ranks(2, [](const World& world) {
    for (const bool told : {true, false}) {
      Model model = build(make_net);
      auto& net = as_net(*model);
      auto options = options_for(init_device_mesh(world));
      auto half = options;
      half.mp_policy.param_dtype = torch::kHalf;
      if (told) half.mp_policy.output_dtype = torch::kDouble;
      fully_shard(*net.a, options);
      fully_shard(*net.b, half);
      fully_shard(*model, options);
      const Tensor first = net.a(input(world.rank(), 0));
      const Tensor middle = call(net.b, first);
      EXPECT_EQ(first.scalar_type(), torch::kDouble);
      EXPECT_EQ(middle.scalar_type(), told ? torch::kDouble : torch::kHalf);
      EXPECT_EQ(net.b->f->weight.scalar_type(), torch::kHalf);
      EXPECT_EQ(net.a->f->weight.scalar_type(), torch::kDouble);
      square_loss(net.c(middle.to(torch::kDouble))).backward();
      for (const Tensor& shard : model->parameters()) {
        if (!shard.grad().defined()) continue;
        EXPECT_EQ(shard.grad().scalar_type(), torch::kDouble);
      }
    }
  });
}

TEST_F(Fsdp2List, APlacementAlongADimThatIsNotThereIsRefusedByName) {
  on_ranks(2, [](const World& world) {
    for (const int64_t dim : {1, -2, 7}) {
      Model model = build(make_net);
      auto options = options_for(init_device_mesh(world));
      options.shard_placement_fn = [&](const Tensor& parameter) {
        return parameter.dim() == 1 ? Shard{dim} : Shard{0};
      };
      const std::string message =
          message_of([&] { fully_shard(*as_net(*model).a, options); });
      EXPECT_TRUE(says(message, "'gain'") || says(message, "'f.bias'"));
      EXPECT_TRUE(says(message, str("along dim ", dim)));
      plain_loss(*model, {world.rank(), 0, 1}).backward();  // as it was
    }
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
