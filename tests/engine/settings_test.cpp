// What may be changed between steps: each setting changes what it names, and no
// numbers but those it is meant to.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tessera/shard/unit.h"
#include "tests/support/net.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class Settings : public DoubleByDefault {};

int64_t gathers(nn::Module& model, const std::string& name) {
  return unit_named(model, name).counts().gathers;
}

void reset_counts(nn::Module& model) {
  for (const auto& unit : units_below(model)) unit->reset_counts();
}

Tensor loss_of(const World& world, nn::Module& model, int step = 0) {
  return plain_loss(model, {world.rank(), step, 1});
}

TEST_F(Settings, ReshardAfterForwardCanBeChangedBetweenSteps) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    loss_of(world, *model).backward();
    EXPECT_EQ(gathers(*model, "a"), 2);
    set_reshard_after_forward(*model, Reshard::never);
    reset_counts(*model);
    loss_of(world, *model).backward();
    EXPECT_EQ(gathers(*model, "a"), 1);
    set_reshard_after_forward(*as_net(*model).a, Reshard::always, Recurse::no);
    reset_counts(*model);
    loss_of(world, *model).backward();
    EXPECT_EQ(gathers(*model, "a"), 2);
    EXPECT_EQ(gathers(*model, "b"), 1);
    set_reshard_after_forward(*model, Reshard::always, Recurse::no);
    reset_counts(*model);
    loss_of(world, *model).backward();
    EXPECT_EQ(gathers(*model, "b"), 1) << "the root's setting is its own";
  });
}

TEST_F(Settings, KeptAfterBackwardTheNextForwardGathersNothingUntilAStep) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    set_reshard_after_backward(*model, Reshard::never);
    loss_of(world, *model).backward();
    EXPECT_TRUE(unit_named(*model, "a").gathered());
    reset_counts(*model);
    {
      torch::NoGradGuard no_grad;
      loss_of(world, *model);
    }
    EXPECT_EQ(gathers(*model, "b"), 0);
    loss_of(world, *model).backward();
    auto optimizer = make_sgd(model->parameters());
    optimizer->step();
    reset_counts(*model);
    loss_of(world, *model).backward();
    EXPECT_GE(gathers(*model, "b"), 1) << "the step has changed the shards";
  });
}

TEST_F(Settings, GradientsAreDividedByTheFactorOfTheModulesOwnUnitOnce) {
  for (const int world_size : {1, 2, 3}) {
    const Tensors mean =
        gradients_of_one_process(world_size, make_net, plain_loss);
    on_ranks(world_size, [&](const World& world) {
      Model model = build_sharded(world, make_net, kUnits);
      set_gradient_divide_factor(*as_net(*model).a, 0.5);
      loss_of(world, *model).backward();
      const Tensors got = full_gradients(world, *model);
      expect_close(got.at("a.f.weight"),
                   mean.at("a.f.weight") * world_size / 0.5, "a");
      expect_close(got.at("b.f.weight"), mean.at("b.f.weight"), "b");
      for (const double factor : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
        EXPECT_TRUE(says(
            message_of([&] { set_gradient_divide_factor(*model, factor); }),
            "expected a finite number above 0"));
      }
      set_gradient_divide_factor(*as_net(*model).a, {});
      model->zero_grad();
      loss_of(world, *model).backward();
      expect_close(full_gradients(world, *model), mean, "gradient");
    });
  }
}

TEST_F(Settings, TheAllReduceHookSeesTheSumAndMayChangeIt) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    int calls = 0;
    set_all_reduce_hook(*as_net(*model).b, [&](const Tensor& flat) {
      ++calls;
      EXPECT_EQ(flat.dim(), 1);
      flat.mul_(3);
    });
    loss_of(world, *model).backward();
    const Tensors got = full_gradients(world, *model);
    EXPECT_EQ(calls, 1);
    expect_close(got.at("b.f.weight"), mean.at("b.f.weight") * 3, "b");
    expect_close(got.at("a.f.weight"), mean.at("a.f.weight"), "a");
  });
}

TEST_F(Settings, PrefetchListsInAnyOrderChangeNoNumbers) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto& net = as_net(*model);
    set_modules_to_forward_prefetch(*net.a, {net.b.get()});
    set_modules_to_backward_prefetch(*net.b, {net.a.get()});
    set_modules_to_forward_prefetch(*net.b, {net.a.get()});  // never comes
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      loss_of(world, *model).backward();
      expect_close(full_gradients(world, *model), mean, "gradient");
      expect_nothing_gathered(*model, "after backward");
    }
  });
}

TEST_F(Settings, AListedModuleIsGatheredWhenTheOneBeforeItIsUsed) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto& net = as_net(*model);
    set_modules_to_forward_prefetch(*net.a, {net.b.get()});
    const Tensor middle = net.a(input(world.rank(), 0));
    EXPECT_TRUE(unit_named(*model, "b").gathered());
    net.c(net.b(middle)).sum().backward();
    EXPECT_EQ(gathers(*model, "b"), 2);
  });
}

TEST_F(Settings, APrefetchListNamesModulesThatAreNoUnits) {
  on_ranks(1, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto& net = as_net(*model);
    EXPECT_TRUE(says(message_of([&] {
                       set_modules_to_forward_prefetch(*net.a, {net.c.get()});
                     }),
                     "was not given to fully_shard"));
    EXPECT_TRUE(says(message_of([&] {
                       set_modules_to_backward_prefetch(*net.a, {nullptr});
                     }),
                     "a module of the list is null"));
  });
}

TEST_F(Settings, AnUnshardThatIsNotWaitedForIsByTheFirstUse) {
  const Tensors mean = gradients_of_one_process(3, make_net, plain_loss);
  for (const bool wait : {true, false}) {
    on_ranks(3, [&](const World& world) {
      Model model = build_sharded(world, make_net, kUnits);
      UnshardHandle handle = unshard(*as_net(*model).b, Wait::no);
      EXPECT_TRUE(unit_named(*model, "b").gathering());
      if (wait) {
        handle.wait();
        handle.wait();
        EXPECT_FALSE(unit_named(*model, "b").gathering());
      }
      loss_of(world, *model).backward();
      expect_close(full_gradients(world, *model), mean, "gradient");
      EXPECT_EQ(gathers(*model, "b"), 2);
    });
  }
}

// Each function of a module, by its name.
std::map<std::string, std::function<void(nn::Module&)>> setters() {
  return {{"set_requires_gradient_sync",
           [](nn::Module& m) { set_requires_gradient_sync(m, Sync::off); }},
          {"set_requires_all_reduce",
           [](nn::Module& m) {
             set_requires_all_reduce(m, AllReduce::off, Recurse::no);
           }},
          {"set_reshard_after_forward",
           [](nn::Module& m) { set_reshard_after_forward(m, Reshard::never); }},
          {"set_reshard_after_backward",
           [](nn::Module& m) {
             set_reshard_after_backward(m, Reshard::never, Recurse::no);
           }},
          {"step_in_backward",
           [](nn::Module& m) { step_in_backward(m, [](const auto&) {}); }},
          {"set_post_optim_event",
           [](nn::Module& m) {
             StreamEvent event;
             set_post_optim_event(m, event);
           }},
          {"unshard", [](nn::Module& m) { unshard(m); }},
          {"reshard", [](nn::Module& m) { reshard(m); }}};
}

// It would act on the whole unit, or on nothing.
TEST_F(Settings, AreRefusedForAPartOfAUnitWhichTheyName) {
  on_ranks(1, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    for (const auto& [function, set] : setters()) {
      const auto part = message_of([&] { set(*as_net(*model).a->f); });
      EXPECT_TRUE(says(part, function + ": ")) << function;
      EXPECT_TRUE(says(part, "lies inside unit 'a'")) << function;
    }
    EXPECT_TRUE(unit_named(*model, "a").gradient_sync);
    // A module of whole units is not a part of one.
    struct Pair : nn::Module {};
    auto pair = std::make_shared<Pair>();
    pair->register_module("a", as_net(*model).a.ptr());
    pair->register_module("b", as_net(*model).b.ptr());
    set_requires_gradient_sync(*pair, Sync::off);
    EXPECT_FALSE(unit_named(*model, "a").gradient_sync);
    EXPECT_TRUE(units_of(*model).at(0)->gradient_sync);
  });
}

TEST_F(Settings, AreRefusedWhereNothingIsSharded) {
  Model model = build(make_net);
  for (const auto& [function, set] : setters()) {
    if (function == "unshard" || function == "reshard") continue;  // FSDP2's
    EXPECT_TRUE(
        says(message_of([&] { set(*model); }), "was given to fully_shard"))
        << function;
  }
}

TEST_F(Settings, AnEventOfAnOptimizerIsTakenAndNothingElseChanges) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    StreamEvent event;
    set_post_optim_event(*model, event);  // never recorded
    event.record(current_stream(world.device()));
    set_post_optim_event(*model, event);
    loss_of(world, *model).backward();
    expect_close(full_gradients(world, *model), mean, "gradient");
  });
}

TEST_F(Settings, TreesThatShareACommContextUseTheStreamsOfTheFirst) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss);
  on_ranks(2, [&](const World& world) {
    const auto options = options_for(init_device_mesh(world));
    Model first = build(make_net);
    Model second = build(make_net);
    shard(*first, options, kUnits);
    shard(*second, options, kUnits);
    share_comm_ctx({first.get(), second.get()});
    for (const auto& unit : units_below(*second)) {
      EXPECT_EQ(unit->lanes(), units_below(*first)[0]->lanes());
    }
    for (const Model& model : {first, second}) {
      loss_of(world, *model).backward();
      expect_close(full_gradients(world, *model), mean, "gradient");
    }
    EXPECT_TRUE(says(message_of([&] {
                       share_comm_ctx({first.get(), as_net(*second).c.get()});
                     }),
                     "was not given to fully_shard"));
  });
}

// An embedding's table, and a linear layer whose input wants no gradient: what
// FSDP2 needs set_unshard_in_backward for.
TEST_F(Settings, WhatBackwardDoesNotReadIsNotGatheredForIt) {
  struct WordsImpl : nn::Module {
    nn::Embedding table{nullptr};
    nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
    WordsImpl() {
      table = register_module("table", nn::Embedding(7, 4));
      first = register_module("first", nn::Linear(6, 4));
      middle = register_module("middle", nn::Linear(4, 3));
      last = register_module("last", nn::Linear(3, 2));
    }
    Tensor forward(const Tensor& x) {
      const Tensor words = torch::arange(5);
      return last(middle(torch::tanh(table(words) + first(x))));
    }
  };
  const Make make = [] { return std::make_shared<WordsImpl>(); };
  const Loss loss = [](nn::Module& m, const Turn& turn) {
    return square_loss(dynamic_cast<WordsImpl&>(m).forward(input(turn)));
  };
  const Tensors mean = gradients_of_one_process(2, make, loss);
  on_ranks(2, [&](const World& world) {
    Model model = build(make);
    FullyShardOptions options = options_for(init_device_mesh(world));
    options.reshard_after_forward = Reshard::always;
    shard(*model, options, {"table", "first", "middle", "last"});
    loss(*model, {world.rank(), 0, 1}).backward();
    EXPECT_EQ(gathers(*model, "table"), 1);
    EXPECT_EQ(gathers(*model, "first"), 1);
    EXPECT_EQ(gathers(*model, "middle"), 2) << "for its input's gradient";
    expect_close(full_gradients(world, *model), mean, "gradient");
  });
}

TEST_F(Settings, AMethodThatIsNotForwardIsGatheredForAsWell) {
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    auto& net = as_net(*model);
    // What FSDP2 needs register_fsdp_forward_method for.
    const auto encode = [](BlockImpl& block, const Tensor& x) {
      return torch::relu(block.f(x));
    };
    encode(*net.a, input(0, 0)).sum().backward();
    Model plain = build(make_net);
    encode(*as_net(*plain).a, input(0, 0)).sum().backward();
    expect_close(full_gradients(world, *model), plain_gradients(*plain),
                 "gradient");
    EXPECT_EQ(unit_named(*model, "a").counts().reduces, 1);
  });
}

}  // namespace
}  // namespace tessera::test
