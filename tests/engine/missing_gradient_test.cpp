// Gradients that some ranks lack: nobody waits for them to the end of backward.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/net.h"
#include "tests/support/three_blocks.h"
#include "tests/support/units.h"

namespace tessera::test {
namespace {

class MissingGradient : public DoubleByDefault {};

/// `c.extra` is used by the first `users` ranks. `before_a` runs when backward
/// has left b.
Tensor loss_of(nn::Module& module, const Turn& turn, int users,
               const std::function<void()>& before_a = {}) {
  auto& three = dynamic_cast<ThreeImpl&>(module);
  const Tensor h = three.a(input(turn)) + three.a->extra;
  if (before_a) h.register_hook([=](const Tensor&) { before_a(); });
  const Tensor y = three.c(three.b(h) + three.b->extra);
  return square_loss(turn.rank < users ? y + three.c->extra : y);
}

TEST_F(MissingGradient, HoldsUpNothingOnceBackwardHasLeftTheNextUnit) {
  constexpr int kRanks = 3;
  const Make make = [] { return std::make_shared<ThreeImpl>(); };
  for (const int users : {0, 1, 2, kRanks}) {
    const Tensors mean = gradients_of_one_process(
        kRanks, make, [&](auto& module, const auto& turn) {
          return loss_of(module, turn, users);
        });
    on_ranks(kRanks, [&](const World& world) {
      Model model = build(make);
      const auto options = options_for(init_device_mesh(world));
      for (const auto& child : model->children()) fully_shard(*child, options);
      fully_shard(*model, options);
      const auto reduces = [&](const std::string& name) {
        return unit_named(*model, name).counts().reduces;
      };
      bool seen = false;
      const auto look = [&] {
        seen = true;
        for (const auto& name : {"b", "c"}) {
          EXPECT_EQ(reduces(name), 1) << name << " " << users;
          EXPECT_FALSE(unit_named(*model, name).gathered()) << name;
        }
        EXPECT_EQ(reduces("a"), 0);
      };
      loss_of(*model, {world.rank(), 0, 1}, users, look).backward();
      EXPECT_TRUE(seen);
      for (const auto& name : {"a", "b", "c"}) EXPECT_EQ(reduces(name), 1);
      expect_close(full_gradients(world, *model), mean, "gradient");
    });
  }
}

// Frozen when its first micro-batch had been through: neither the step of the
// second one nor a later step has anything of it.
TEST_F(MissingGradient, OfAUnitThatWasFrozenMeanwhileDoesNotTurnUpLater) {
  const Tensors mean = gradients_of_one_process(2, make_net, plain_loss, 2);
  on_ranks(2, [&](const World& world) {
    Model model = build_sharded(world, make_net, kUnits);
    const auto backward = [&](int step) {
      plain_loss(*model, {world.rank(), step, 1}).backward();
    };
    const auto freeze = [&](bool frozen) {
      for (auto& shard : as_net(*model).b->parameters()) {
        shard.requires_grad_(!frozen);
      }
    };
    set_requires_gradient_sync(*model, Sync::off);
    backward(0);
    set_requires_gradient_sync(*model, Sync::on);
    freeze(true);
    backward(1);
    for (auto& shard : as_net(*model).b->parameters()) {
      EXPECT_FALSE(shard.grad().defined());
    }
    model->zero_grad();
    freeze(false);
    backward(2);
    expect_close(full_gradients(world, *model), mean, "gradient");
  });
}

}  // namespace
}  // namespace tessera::test
