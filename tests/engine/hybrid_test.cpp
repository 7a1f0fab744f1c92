// Meshes of two axes: what is summed where, and which axis is which.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/comm/communicator.h"
#include "tessera/shard/context.h"
#include "tests/support/net.h"
#include "tests/support/three_blocks.h"

namespace tessera::test {
namespace {

class Hybrid : public DoubleByDefault {};

DeviceMesh hybrid_mesh(const World& world, int64_t replicas, int64_t parts) {
  return init_device_mesh(world, {.shape = {replicas, parts},
                                  .axes = {"dp_replicate", "dp_shard"}});
}

Model build_hybrid(const DeviceMesh& mesh) {
  Model model = build(make_net);
  shard(*model, options_for(mesh), kUnits);
  return model;
}

int64_t owned(nn::Module& model) {
  int64_t numel = 0;
  for (const Tensor& shard : model.parameters()) numel += local(shard).numel();
  return numel;
}

TEST_F(Hybrid, ARankOwnsAPartOfItsReplicaNotOfTheWorld) {
  on_ranks(4, [&](const World& world) {
    int64_t whole = 0;
    for (const auto& tensor : build(make_net)->parameters()) {
      whole += tensor.numel();
    }
    Model halved = build_hybrid(hybrid_mesh(world, 2, 2));
    int64_t sum = 0;
    for (const auto& one : all_ranks(world, {double(owned(*halved))})) {
      sum += static_cast<int64_t>(one[0]);
    }
    EXPECT_EQ(sum, 2 * whole);
  });
}

TEST_F(Hybrid, ReplicasHoldTheSameAfterAStepOnDifferentData) {
  on_ranks(4, [&](const World& world) {
    Model model = build_hybrid(hybrid_mesh(world, 2, 2));
    auto optimizer = make_sgd(model->parameters());
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    optimizer->step();
    std::vector<double> mine;
    for (const Tensor& shard : model->parameters()) {
      const Tensor part = local(shard).contiguous();
      mine.insert(mine.end(), part.const_data_ptr<double>(),
                  part.const_data_ptr<double>() + part.numel());
    }
    const auto all = all_ranks(world, mine);
    EXPECT_EQ(all[0], all[2]);
    EXPECT_EQ(all[1], all[3]);
    EXPECT_NE(all[0], all[1]);
  });
}

TEST_F(Hybrid, WithoutAllReduceNoGradientComesUntilOneWithIt) {
  const Tensors first = gradients_of_one_process(4, make_net, plain_loss, 0);
  const Tensors second = gradients_of_one_process(4, make_net, plain_loss, 1);
  on_ranks(4, [&](const World& world) {
    const DeviceMesh mesh = hybrid_mesh(world, 2, 2);
    Model model = build_hybrid(mesh);
    set_requires_all_reduce(*model, AllReduce::off);
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    for (const Tensor& shard : model->parameters()) {
      EXPECT_FALSE(shard.grad().defined());
    }
    set_requires_all_reduce(*model, AllReduce::on);
    plain_loss(*model, {world.rank(), 1, 1}).backward();
    const Tensor weight = model->named_parameters()["a.f.weight"];
    ASSERT_TRUE(weight.grad().defined());
    // Sums of both steps' means, this rank's rows.
    const Tensor want = first.at("a.f.weight") + second.at("a.f.weight");
    const auto& boxes = spread_of(weight)->boxes;
    ASSERT_EQ(boxes.size(), 1u);
    expect_close(local(weight.grad()),
                 want.narrow(0, boxes[0].offsets[0], boxes[0].lengths[0]),
                 "gradient");
  });
}

TEST_F(Hybrid, AGradientThatOnlyTheFirstMicroBatchBroughtIsNotLost) {
  on_ranks(4, [&](const World& world) {
    Model model = build_hybrid(hybrid_mesh(world, 2, 2));
    auto& net = as_net(*model);
    set_requires_all_reduce(*model, AllReduce::off);
    (net.c(net.b(net.a(input(world.rank(), 0)))).sum() + net.a->extra.sum())
        .backward();
    set_requires_all_reduce(*model, AllReduce::on);
    net.c(net.b(net.a(input(world.rank(), 1)))).sum().backward();
    const Tensor extra = model->named_parameters()["a.extra"];
    ASSERT_TRUE(extra.grad().defined());
    expect_close(local(extra.grad()), torch::ones_like(local(extra)), "extra");
  });
}

// As above, of a unit that the closing micro-batch does not use at all: its
// sums must not wait for the step after.
TEST_F(Hybrid, AUnitThatTheLastMicroBatchLeavesOutKeepsItsGradients) {
  const auto first = [](nn::Module& m, const Turn& turn) {
    return plain_loss(m, turn);
  };
  const auto last = [](nn::Module& m, const Turn& turn) {
    auto& net = as_net(m);
    return square_loss(net.c(net.a(input(turn))));
  };
  const Tensors of_first = gradients_of_one_process(4, make_net, first, 0);
  const Tensors of_last = gradients_of_one_process(4, make_net, last, 1);
  on_ranks(4, [&](const World& world) {
    Model model = build_hybrid(hybrid_mesh(world, 2, 2));
    set_requires_all_reduce(*model, AllReduce::off);
    first(*model, {world.rank(), 0, 1}).backward();
    set_requires_all_reduce(*model, AllReduce::on);
    last(*model, {world.rank(), 1, 1}).backward();
    for (const auto& [name, want] :
         Tensors{{"a.f.weight",
                  of_first.at("a.f.weight") + of_last.at("a.f.weight")},
                 {"b.f.weight", of_first.at("b.f.weight")}}) {
      const Tensor shard = model->named_parameters()[name];
      ASSERT_TRUE(shard.grad().defined()) << name;
      const auto& box = spread_of(shard)->boxes.at(0);
      expect_close(local(shard.grad()),
                   want.narrow(0, box.offsets[0], box.lengths[0]), name);
    }
    model->zero_grad();
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    const Tensor shard = model->named_parameters()["b.f.weight"];
    const auto& box = spread_of(shard)->boxes.at(0);
    expect_close(
        local(shard.grad()),
        of_first.at("b.f.weight").narrow(0, box.offsets[0], box.lengths[0]),
        "the next step's own");
  });
}

// Three blocks: the last one's gradients are whole on three ranks long before
// the fourth, which lacks one, gives its own. Nobody may wait for them before
// the first block has been gathered.
TEST_F(Hybrid, AGradientThatOneRankLacksHoldsUpNoGatherInBackward) {
  const Make make = [] { return std::make_shared<ThreeImpl>(); };
  const Loss loss = [](nn::Module& module, const Turn& turn) {
    auto& three = dynamic_cast<ThreeImpl&>(module);
    const Tensor h = three.a(input(turn)) + three.a->extra;
    const Tensor y = three.c(three.b(h) + three.b->extra);
    return square_loss(turn.rank == 0 ? y : y + three.c->extra);
  };
  const Tensors mean = gradients_of_one_process(4, make, loss);
  on_ranks(4, [&](const World& world) {
    Model model = build(make);
    FullyShardOptions options = options_for(hybrid_mesh(world, 2, 2));
    options.reshard_after_forward = Reshard::always;
    for (const auto& child : model->children()) fully_shard(*child, options);
    fully_shard(*model, options);
    loss(*model, {world.rank(), 0, 1}).backward();
    for (const auto& item : model->named_parameters()) {
      for (const Box& box : spread_of(item.value())->boxes) {
        expect_close(
            local(item.value().grad()),
            mean.at(item.key()).narrow(0, box.offsets[0], box.lengths[0]),
            item.key());
      }
    }
  });
}

TEST_F(Hybrid, ReplicatedOverTwoAxesAveragesOverAllRanks) {
  const Tensors mean = gradients_of_one_process(4, make_net, plain_loss);
  on_ranks(4, [&](const World& world) {
    Model model = build(make_net);
    replicate(*model, options_for(hybrid_mesh(world, 2, 2)));
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    Tensors got;
    for (const auto& item : model->named_parameters()) {
      if (item.value().grad().defined()) {
        got[item.key()] = local(item.value().grad()).clone();
      }
    }
    expect_close(got, mean, "gradient");
  });
}

TEST_F(Hybrid, ReplicasThatStartFromDifferentValuesAreRefused) {
  const std::string message = message_of([&] {
    on_ranks(2, [&](const World& world) {
      Model model = build(make_net);
      {
        torch::NoGradGuard no_grad;
        if (world.rank() == 1) model->parameters()[0].add_(1);
      }
      shard(*model, options_for(hybrid_mesh(world, 2, 1)), kUnits);
    });
  });
  EXPECT_TRUE(says(message, "start from different parameters"));
}

// The axis that replicates, by the size of a rank's part.
int64_t parts_on(const World& world, const MeshOptions& axes,
                 const std::string& replicate_axis = "") {
  Model model =
      std::make_shared<nn::LinearImpl>(nn::LinearOptions(3, 12).bias(false));
  FullyShardOptions options = options_for(init_device_mesh(world, axes));
  options.replicate_axis = replicate_axis;
  options.start_check = StartCheck::off;
  fully_shard(*model, options);
  return 36 / local(model->parameters()[0]).numel();
}

TEST_F(Hybrid, TheAxesNamesSayWhichOneReplicates) {
  on_ranks(6, [&](const World& world) {
    EXPECT_EQ(parts_on(world, {{2, 3}, {"dp_replicate", "dp_shard"}}), 3);
    EXPECT_EQ(parts_on(world, {{2, 3}, {"dp_shard", "dp_replicate"}}), 2);
    EXPECT_EQ(parts_on(world, {{2, 3}, {"fsdp", "outer"}}), 2);
    EXPECT_EQ(parts_on(world, {{2, 3}, {"hosts", "gpus"}}), 3);
    EXPECT_EQ(parts_on(world, {{2, 3}, {"hosts", "gpus"}}, "gpus"), 2);
  });
}

std::string refusal(const MeshOptions& axes, FullyShardOptions options) {
  return message_of([&] {
    on_ranks(4, [&](const World& world) {
      FullyShardOptions mine = options;
      mine.mesh = init_device_mesh(world, axes);
      fully_shard(*build(make_net), mine);
    });
  });
}

TEST_F(Hybrid, MeshesAndAxesThatSayNothingClearAreRefused) {
  EXPECT_TRUE(says(refusal({{2, 2}, {"shard_a", "shard_b"}}, {}),
                   "do not say along which axis"));
  EXPECT_TRUE(says(refusal({{2, 2}, {"a", "b"}}, {.replicate_axis = "c"}),
                   "is no axis of the mesh (a: 2, b: 2)"));
  EXPECT_TRUE(says(refusal({{1, 2, 2}, {"a", "b", "c"}}, {}), "has 3 axes"));
  EXPECT_TRUE(says(refusal({{4}, {"a"}}, {.replicate_axis = "a"}),
                   "needs a mesh of two axes"));
}

TEST_F(Hybrid, KeepersThatDoNotDivideTheRanksAreRefused) {
  for (const int keepers : {0, -1, 3, 5}) {
    EXPECT_TRUE(says(
        refusal({{4}, {"a"}}, {.reshard_after_forward = keepers}),
        str("over ", keepers, " ranks; expected a number that divides the 4")));
  }
}

// On a slice of a larger mesh each rank asks for its own group only.
TEST_F(Hybrid, KeepersOnASlicedMeshDoNotHang) {
  const Tensors mean = gradients_of_one_process(4, make_net, plain_loss);
  on_ranks(8, [&](const World& world) {
    const DeviceMesh mesh =
        init_device_mesh(world, {.shape = {2, 4}, .axes = {"pp", "dp"}})["dp"];
    Model model = build(make_net);
    FullyShardOptions options = options_for(mesh);
    options.reshard_after_forward = 2;
    shard(*model, options, kUnits);
    plain_loss(*model, {static_cast<int>(mesh.coordinate("dp")), 0, 1})
        .backward();
    const Tensor weight = model->named_parameters()["a.f.weight"];
    const auto& box = spread_of(weight)->boxes.at(0);
    expect_close(
        local(weight.grad()),
        mean.at("a.f.weight").narrow(0, box.offsets[0], box.lengths[0]),
        "gradient");
  });
}

}  // namespace
}  // namespace tessera::test
