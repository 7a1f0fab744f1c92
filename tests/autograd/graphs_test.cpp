// Graphs that use parameters in unusual ways.
#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Graphs = DoubleByDefault;

TEST_F(Graphs, TwoForwardsThenTwoBackwards) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const Tensor first = plain_loss(m, turn);
                     const Tensor second = plain_loss(m, later(turn, 5));
                     (first * turn.share).backward();
                     return second;
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, ARetainedGraphIsWalkedTwice) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const Tensor loss = plain_loss(m, turn);
                     (loss * turn.share).backward({}, /*retain_graph=*/true);
                     return loss;
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, SeveralBackwardsAddUp) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     (plain_loss(m, later(turn, 3)) * turn.share).backward();
                     (plain_loss(m, later(turn, 4)) * turn.share).backward();
                     return plain_loss(m, turn);
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, OnlyAPartOfTheOutputIsUsed) {
  expect_agreement(
      make_net,
      [](nn::Module& m, const Turn& turn) {
        return square_loss(as_net(m).forward(input(turn)).chunk(3, -1)[1]);
      },
      {.units = kUnits});
}

TEST_F(Graphs, AParameterThatNoRankUsesGetsNoGradient) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensors gradients = full_gradients(world, *model);
    EXPECT_FALSE(gradients.contains("b.extra"));
    EXPECT_TRUE(gradients.contains("b.gain"));
  });
}

// Double backward -------------------------------------------------------------

TEST_F(Graphs, AGradientPenaltyThroughTheInputs) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const Tensor x = input(turn).requires_grad_();
                     const Tensor loss = square_loss(as_net(m).forward(x));
                     const Tensor slope = torch::autograd::grad(
                         {loss}, {x}, {}, true, /*create_graph=*/true)[0];
                     return loss + slope.pow(2).sum();
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, AGradientPenaltyThroughAMember) {
  expect_agreement(make_net,
                   [](nn::Module& m, const Turn& turn) {
                     const Tensor loss = plain_loss(m, turn);
                     const Tensor slope = torch::autograd::grad(
                         {loss}, {as_net(m).b->f->weight}, {}, true,
                         /*create_graph=*/true)[0];
                     return loss + slope.pow(2).sum();
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, CreateGraphInBackwardIsRefusedByName) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
    const std::string message =
        message_of([&] { loss.backward({}, true, /*create_graph=*/true); });
    EXPECT_TRUE(says(message, "create_graph"));
    EXPECT_TRUE(says(message, "c."));
    expect_nothing_gathered(*model, "after the refusal");
  });
}

// torch::autograd::grad -------------------------------------------------------

TEST_F(Graphs, GradOfInputsLeavesShardsWithoutGradients) {
  Model plain = build(make_net);
  const Tensor x = input(0, 0).requires_grad_();
  const Tensor want =
      torch::autograd::grad({square_loss(as_net(*plain).forward(x))}, {x})[0];
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor mine = input(0, 0).requires_grad_();
    const Tensor got = torch::autograd::grad(
        {square_loss(as_net(*model).forward(mine))}, {mine})[0];
    expect_close(got, want, "input gradient");
    expect_nothing_gathered(*model, "after grad");
    for (const Tensor& shard : model->parameters()) {
      EXPECT_FALSE(shard.grad().defined());
    }
  });
}

TEST_F(Graphs, GradOfAShardSaysThatItIsNotInTheGraph) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor loss = plain_loss(*model, {world.rank(), 0, 1});
    EXPECT_TRUE(says(message_of([&] {
                       torch::autograd::grad({loss}, {model->parameters()[0]});
                     }),
                     "not have been used in the graph"));
  });
}

TEST_F(Graphs, GradOfAMemberIsWholeAndThisRanksOwn) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const Tensor got =
        torch::autograd::grad({plain_loss(*model, {world.rank(), 0, 1})},
                              {as_net(*model).b->f->weight})[0];
    Model plain = build(make_net);
    const Tensor want =
        torch::autograd::grad({plain_loss(*plain, {world.rank(), 0, 1})},
                              {as_net(*plain).b->f->weight})[0];
    expect_close(got, want, "gradient of the member");
  });
}

TEST_F(Graphs, BackwardOfOneMemberReachesItsShardOnly) {
  Model plain = build(make_net);
  for (int rank = 0; rank < 2; ++rank) {
    (plain_loss(*plain, {rank, 0, 0.5}) / 2)
        .backward({}, std::nullopt, false,
                  std::vector<Tensor>{as_net(*plain).b->f->weight});
  }
  const Tensors want = plain_gradients(*plain);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    plain_loss(*model, {world.rank(), 0, 1})
        .backward({}, std::nullopt, false,
                  std::vector<Tensor>{as_net(*model).b->f->weight});
    expect_nothing_gathered(*model, "after backward");
    expect_close(full_gradients(world, *model), want, "gradient");
  });
}

// Parameters that only some ranks use -----------------------------------------

// Two blocks of one size, so that collectives in another order would pair up.
struct TwinsImpl : nn::Module {
  Block a{nullptr}, b{nullptr};
  nn::Linear c{nullptr};
  TwinsImpl() {
    a = register_module("a", Block(6, 6));
    b = register_module("b", Block(6, 6));
    c = register_module("c", nn::Linear(6, 3));
  }
};

Model make_twins() { return std::make_shared<TwinsImpl>(); }

TEST_F(Graphs, AParameterUsedOnRankZeroOnlyGetsTheMeanWithZeros) {
  expect_agreement(make_twins,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = dynamic_cast<TwinsImpl&>(m);
                     Tensor h = net.a(input(turn)) + net.a->extra;
                     h = net.b(h);
                     if (turn.rank == 0) h = h + net.b->extra;
                     return square_loss(net.c(h));
                   },
                   {.units = kUnits});
}

TEST_F(Graphs, AParameterUsedOnTheLastRankOnlyInEveryBlock) {
  expect_agreement(make_twins,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = dynamic_cast<TwinsImpl&>(m);
                     Tensor h = net.a(input(turn));
                     if (turn.rank == 1) h = h + net.a->extra;
                     h = net.b(h);
                     if (turn.rank == 1) h = h * net.b->extra;
                     return square_loss(net.c(h));
                   },
                   {.units = kUnits, .steps = 3});
}

TEST_F(Graphs, TheUsersOfAParameterChangeFromStepToStep) {
  expect_agreement(make_twins,
                   [](nn::Module& m, const Turn& turn) {
                     auto& net = dynamic_cast<TwinsImpl&>(m);
                     Tensor h = net.a(input(turn));
                     if (turn.step % 2 == turn.rank % 2) h = h + net.a->extra;
                     h = net.b(h);
                     if (turn.step == 2) h = h * net.b->extra;
                     return square_loss(net.c(h));
                   },
                   {.units = kUnits, .steps = 4});
}

// Ties ------------------------------------------------------------------------

Model make_tied() {
  auto net = std::make_shared<NetImpl>();
  net->tied = net->register_module("tied", Tied(net->a->f->weight));
  return net;
}

Tensor tied_loss(nn::Module& m, const Turn& turn) {
  const Tensor again = input(later(turn, 5)).mm(as_net(m).tied->w.t());
  return plain_loss(m, turn) + again.pow(2).mean();
}

TEST_F(Graphs, AParameterTiedInsideOneUnit) {
  expect_agreement(make_tied, tied_loss, {.units = {}});
}

TEST_F(Graphs, AParameterTiedBetweenAUnitAndTheRoot) {
  expect_agreement(make_tied, tied_loss, {.units = kUnits});
}

TEST_F(Graphs, AParameterTiedAcrossTwoUnits) {  // A28
  expect_agreement(make_tied, tied_loss, {.units = {"a", "b", "tied"}});
}

TEST_F(Graphs, TheFirstUnitOwnsATiedParameter) {
  on_ranks(2, [](const World& world) {
    Model model = build_sharded(world, make_tied, {"a", "b"});
    auto& net = as_net(*model);
    EXPECT_TRUE(net.tied->parameters()[0].is_same(net.a->f->parameters()[0]));
    EXPECT_EQ(unit_of(net.tied->parameters()[0])->name(), "a");
  });
}

}  // namespace
}  // namespace tessera::test
