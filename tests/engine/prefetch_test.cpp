// Gathers that start before their unit is needed.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/net.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class Prefetch : public DoubleByDefault {};

Model sharded(const World& world, size_t prefetch,
              BackwardOverlap overlap = BackwardOverlap::full) {
  Model model = build(make_net);
  const FullyShardOptions options{.mesh = init_device_mesh(world),
                                  .reshard_after_forward = Reshard::always,
                                  .prefetch = prefetch,
                                  .backward_overlap = overlap,
                                  .debug = Debug::poison_memory};
  auto& net = as_net(*model);
  fully_shard(*net.a, options);
  fully_shard(*net.b, options);
  fully_shard(*net.c, options);
  fully_shard(*model, options);
  return model;
}

/// Four training steps with an evaluation between; all weights at the end, and
/// how often each unit was gathered.
std::pair<Tensors, std::vector<int64_t>> train(const World& world,
                                               size_t prefetch,
                                               BackwardOverlap overlap) {
  Model model = sharded(world, prefetch, overlap);
  torch::optim::Adam optimizer(model->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    plain_loss(*model, {world.rank(), step, 1}).backward();
    optimizer.step();
    optimizer.zero_grad();
    torch::NoGradGuard no_grad;
    for (int round = 0; round < 2; ++round) {
      (void)as_net(*model).forward(input(world.rank(), 50 + round));
    }
  }
  std::vector<int64_t> gathers;
  for (const auto& unit : units_below(*model)) {
    EXPECT_FALSE(unit->name() != "" && unit->options().prefetch != prefetch);
    gathers.push_back(unit->counts().gathers);
  }
  Tensors weights;
  const FullParameters scope(*model, Write::discard);
  for (const auto& item : model->named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return {weights, gathers};
}

// All but c, with which forward ends, are freed after forward; the last ones of
// these are the first in backward, and stay once the order is known.
TEST_F(Prefetch, ChangesNoBitAndGathersTheLastUnitsOnce) {
  for (const int world_size : {2, 3}) {
    on_ranks(world_size, [&](const World& world) {
      using enum BackwardOverlap;
      const auto [plain, plain_gathers] = train(world, 0, full);
      for (const auto& [prefetch, overlap] :
           std::vector<std::pair<size_t, BackwardOverlap>>{{1, full},
                                                           {2, full},
                                                           {9, full},
                                                           {0, tight},
                                                           {1, tight},
                                                           {2, tight}}) {
        const auto [weights, gathers] = train(world, prefetch, overlap);
        std::vector<int64_t> fewer = plain_gathers;
        if (prefetch >= 1) fewer[1] -= 3;
        if (prefetch >= 2) fewer[0] -= 3;
        EXPECT_EQ(gathers, fewer) << prefetch;
        ASSERT_EQ(weights.size(), plain.size());
        for (const auto& [name, weight] : weights) {
          EXPECT_TRUE(weight.equal(plain.at(name))) << name << " " << prefetch;
        }
      }
    });
  }
}

TEST_F(Prefetch, StartsTheNextUnitsGatherOnceTheOrderIsKnown) {
  on_ranks(2, [&](const World& world) {
    for (const size_t prefetch : {0, 1, 2}) {
      Model model = sharded(world, prefetch);
      auto& net = as_net(*model);
      for (int step = 0; step < 3; ++step) {
        const Tensor hidden = net.a(input(world.rank(), step));
        EXPECT_EQ(unit_named(*model, "b").gathered(),
                  step > 0 && prefetch >= 1);
        EXPECT_EQ(unit_named(*model, "c").gathered(),
                  step > 0 && prefetch >= 2);
        square_loss(net.c(net.b(hidden))).backward();
        for (const auto& unit : units_below(*model)) {
          EXPECT_FALSE(unit->gathered()) << unit->name();
        }
      }
    }
  });
}

TEST_F(Prefetch, FreesAUnitThatWasExpectedInVainAndStaysRight) {
  const auto b_takes_part = [](int step) { return step % 3 != 2; };
  const Loss loss = [&](nn::Module& module, const Turn& turn) {
    auto& net = as_net(module);
    Tensor hidden = net.a(input(turn));
    if (b_takes_part(turn.step)) hidden = net.b(hidden);
    return square_loss(net.c(hidden));
  };
  on_ranks(2, [&](const World& world) {
    Model model = sharded(world, 1);
    for (int step = 0; step < 7; ++step) {
      const Tensor value = loss(*model, {world.rank(), step, 1});
      if (!b_takes_part(step)) {
        EXPECT_FALSE(unit_named(*model, "b").gathered()) << step;
      }
      value.backward();
      const auto expected = gradients_of_one_process(2, make_net, loss, step);
      for (const auto& item : model->named_parameters()) {
        const Tensor& grad = item.value().grad();
        const auto of_one = expected.find(item.key());
        const bool has_one =
            of_one != expected.end() && of_one->second.defined();
        ASSERT_EQ(grad.defined(), has_one) << item.key() << " " << step;
        if (!has_one) continue;
        const Box box = spread_of(item.value())->boxes.empty()
                            ? Box{{0}, {0}}
                            : spread_of(item.value())->boxes[0];
        const Tensor own =
            of_one->second.narrow(0, box.offsets[0], box.lengths[0]);
        EXPECT_TRUE(
            torch::allclose(local(grad).view(own.sizes()), own, 1e-9, 1e-12))
            << item.key() << " " << step;
      }
      EXPECT_FALSE(unit_named(*model, "b").gathered()) << step;
      for (const Tensor& parameter : model->parameters()) {
        parameter.mutable_grad().reset();
      }
    }
  });
}

}  // namespace
}  // namespace tessera::test
