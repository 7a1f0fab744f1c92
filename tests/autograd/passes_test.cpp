// What is between forward and backward: modes without gradients, frozen
// parameters, failures, steps, accumulation.
#include <atomic>

#include "tests/support/net.h"

namespace tessera::test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

using Passes = DoubleByDefault;

// Forward without gradients ---------------------------------------------------

TEST_F(Passes, AForwardWithoutGradComesBeforeTraining) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     {
                       torch::NoGradGuard no_grad;
                       plain_loss(m, later(turn, 3));
                     }
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits, .steps = 3});
}

TEST_F(Passes, AForwardInInferenceModeComesBeforeTraining) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     {
                       c10::InferenceMode inference;
                       plain_loss(m, later(turn, 3));
                     }
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits, .steps = 3});
}

// Frozen parameters -----------------------------------------------------------

bool starts_with_any(const std::string& name,
                     const std::vector<std::string>& starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const auto& start) {
    return name.starts_with(start);
  });
}

void set_flags(nn::Module& module, const std::vector<std::string>& names,
               bool flag) {
  for (auto& item : module.named_parameters()) {
    if (starts_with_any(item.key(), names)) item.value().requires_grad_(flag);
  }
}

Make make_frozen(std::vector<std::string> names) {
  return [names] {
    Model model = make_net();
    set_flags(*model, names, false);
    return model;
  };
}

TEST_F(Passes, AWholeUnitIsFrozen) {
  expect_agreement(make_frozen({"b."}), plain_loss, {.units = kUnits});
}

TEST_F(Passes, TheFirstUnitIsFrozen) {
  expect_agreement(make_frozen({"a."}), plain_loss, {.units = kUnits});
}

TEST_F(Passes, SomeParametersOfAUnitAreFrozen) {
  expect_agreement(make_frozen({"b.f.weight", "a.gain"}), plain_loss,
                   {.units = kUnits});
}

TEST_F(Passes, FreezingThroughTheMemberForOneStep) {
  expect_agreement(
      make_net, plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         as_net(m).b->f->weight.requires_grad_(step != 1);
       }});
}

TEST_F(Passes, FreezingThroughParametersForOneStep) {
  expect_agreement(
      make_net, plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         set_flags(m, {"b.f.weight"}, step != 1);
       }});
}

TEST_F(Passes, UnfreezingThroughTheMemberGivesAGradientInTheNextStep) {
  expect_agreement(
      make_frozen({"b."}), plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         as_net(m).b->f->weight.requires_grad_(step >= 1);
       }});
}

TEST_F(Passes, UnfreezingThroughParametersGivesAGradientInTheNextStep) {
  expect_agreement(
      make_frozen({"b.f.weight", "c."}), plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         set_flags(m, {"b.f.weight", "c."}, step >= 1);
       }});
}

TEST_F(Passes, AWholeUnitIsUnfrozenThroughParameters) {
  expect_agreement(
      make_frozen({"a."}), plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         set_flags(m, {"a."}, step >= 1);
       }});
}

TEST_F(Passes, EverythingIsUnfrozenAfterAStepOfTheHeadAlone) {
  expect_agreement(
      make_frozen({"a.", "b."}), plain_loss,
      {.units = kUnits, .steps = 3, .before = [](nn::Module& m, int step) {
         set_flags(m, {"a.", "b."}, step >= 1);
       }});
}

// Failures --------------------------------------------------------------------

struct Bomb : Function<Bomb> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static tensor_list backward(AutogradContext*, tensor_list) {
    throw std::runtime_error("the bomb went off");
  }
};

// Fails on all ranks, then trains one step as if nothing had been.
void expect_normal_step_after(const std::function<void(NetImpl&, int)>& fails) {
  const Tensors want =
      gradients_of_one_process(2, make_net, plain_loss, /*step=*/1);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    EXPECT_TRUE(
        says(message_of([&] { fails(as_net(*model), world.rank()); }), "bomb"));
    world.barrier();
    model->zero_grad();
    plain_loss(*model, {world.rank(), 1, 1}).backward();
    expect_nothing_gathered(*model, "after the step that follows");
    expect_close(full_gradients(world, *model), want, "gradient");
  });
}

TEST_F(Passes, AnExceptionInForwardIsFollowedByANormalStep) {
  expect_normal_step_after([](NetImpl& net, int rank) {
    net.b->f(net.a(input(rank, 0)));
    throw std::runtime_error("a bomb in forward");
  });
}

TEST_F(Passes, AnExceptionLateInBackwardIsFollowedByANormalStep) {
  expect_normal_step_after([](NetImpl& net, int rank) {
    const Tensor h = net.a(Bomb::apply(input(rank, 0).requires_grad_()));
    square_loss(net.c(net.b(h))).backward();
  });
}

TEST_F(Passes, AnExceptionBetweenUnitsInBackwardIsFollowedByANormalStep) {
  expect_normal_step_after([](NetImpl& net, int rank) {
    const Tensor h = net.a(input(rank, 0));
    square_loss(net.c(Bomb::apply(net.b(h)))).backward();
  });
}

TEST_F(Passes, AnExceptionInsideAUnitInBackwardIsFollowedByANormalStep) {
  expect_normal_step_after([](NetImpl& net, int rank) {
    const Tensor h = torch::tanh(Bomb::apply(net.b->f(net.a(input(rank, 0)))));
    square_loss(net.c(h * net.b->gain)).backward();
  });
}

TEST_F(Passes, AnExceptionInAHookIsFollowedByANormalStep) {
  expect_normal_step_after([](NetImpl& net, int rank) {
    Tensor h = net.a(input(rank, 0));
    h.register_hook([](const Tensor&) -> Tensor {
      throw std::runtime_error("a bomb in a hook");
    });
    square_loss(net.c(net.b(h))).backward();
  });
}

// Steps between ---------------------------------------------------------------

TEST_F(Passes, ASecondBackwardOfAnOldGraphAfterAStepIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    torch::optim::Adam adam(model->parameters(), 0.1);
    const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
    loss.backward({}, /*retain_graph=*/true);
    adam.step();
    EXPECT_TRUE(says(message_of([&] { loss.backward(); }),
                     "was written between the forward pass and this backward"));
    world.barrier();
    adam.zero_grad();
    plain_loss(*model, {world.rank(), 1, 1}).backward();
  });
}

// The new forward has gathered the new weights meanwhile.
TEST_F(Passes, ABackwardOfAnOldGraphAfterAStepAndANewForwardIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Optimizer sgd = make_sgd(model->parameters());
    const Tensor old = plain_loss(*model, {world.rank(), 0, 1});
    old.backward({}, /*retain_graph=*/true);
    sgd->step();
    const Tensor fresh = plain_loss(*model, {world.rank(), 1, 1});
    EXPECT_TRUE(
        says(message_of([&] { old.backward(); }), "was written between"));
    world.barrier();
    fresh.backward();
  });
}

TEST_F(Passes, AnOldGraphWithoutABackwardYetIsToldFromTheNewOne) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Optimizer sgd = make_sgd(model->parameters());
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensor old = plain_loss(*model, {world.rank(), 0, 1});
    sgd->step();
    {
      torch::NoGradGuard no_grad;
      plain_loss(*model, {world.rank(), 2, 1});
    }
    const Tensor fresh = plain_loss(*model, {world.rank(), 1, 1});
    fresh.backward();
    EXPECT_TRUE(
        says(message_of([&] { old.backward(); }), "was written between"));
  });
}

TEST_F(Passes, AStepOfSgdBetweenForwardAndBackwardIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Optimizer sgd = make_sgd(model->parameters());
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensor loss = plain_loss(*model, {world.rank(), 1, 1});
    sgd->step();
    EXPECT_TRUE(
        says(message_of([&] { loss.backward(); }), "was written between"));
  });
}

// Accumulation ----------------------------------------------------------------

TEST_F(Passes, GradientsAreKeptWithoutSyncAndReducedWithTheLast) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const bool is_rank = is_fully_sharded(m);
                     if (is_rank) set_requires_gradient_sync(m, Sync::off);
                     (plain_loss(m, later(turn, 3)) * turn.share).backward();
                     (plain_loss(m, later(turn, 4)) * turn.share).backward();
                     if (is_rank) set_requires_gradient_sync(m, Sync::on);
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits, .steps = 3});
}

TEST_F(Passes, NothingIsReducedWithoutSync) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    set_requires_gradient_sync(*model, Sync::off);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    for (const auto& unit : units_below(*model)) {
      EXPECT_EQ(unit->counts().reduces, 0) << unit->name();
    }
    for (const Tensor& shard : model->parameters()) {
      EXPECT_FALSE(shard.grad().defined());
    }
    expect_nothing_gathered(*model, "after backward");
  });
}

TEST_F(Passes, AUnitThatOnlyTheUnsyncedPassUsedIsStillReduced) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = as_net(m);
                     const bool is_rank = is_fully_sharded(m);
                     if (is_rank) set_requires_gradient_sync(m, Sync::off);
                     (plain_loss(m, later(turn, 3)) * turn.share).backward();
                     if (is_rank) set_requires_gradient_sync(m, Sync::on);
                     return square_loss(net.c(net.a(input(turn))));  // not b
                   },
                   {.units = kUnits, .steps = 3});
}

TEST_F(Passes, TwoBackwardsWithSyncBeforeOneStepAddUp) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensors first = full_gradients(world, *model);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    for (const auto& [name, gradient] : full_gradients(world, *model)) {
      expect_close(gradient, first.at(name) * 2, name);
    }
  });
}

}  // namespace
}  // namespace tessera::test
