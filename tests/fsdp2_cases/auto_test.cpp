// fully_shard_auto against the calls by hand that it stands for.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/shard/fully_shard_auto.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

using Names = std::vector<std::string>;

class Auto : public DoubleByDefault {};

//   x [5, 6] -> door: Linear(6, 8) -> layers: 3 Blocks(8, 8)
//            -> head: Linear(8, 8), Tanh, Linear(8, 8), Block(8, 3)
struct TowerImpl : nn::Module {
  nn::Linear door{nullptr};
  nn::ModuleList layers;
  nn::Sequential head{nullptr};

  TowerImpl() {
    door = register_module("door", nn::Linear(6, 8));
    register_module("layers", layers);
    for (int i = 0; i < 3; ++i) layers->push_back(Block(8, 8));
    head =
        register_module("head", nn::Sequential(nn::Linear(8, 8), nn::Tanh(),
                                               nn::Linear(8, 8), Block(8, 3)));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = door(x);
    for (const auto& layer : *layers) y = layer->as<Block>()->forward(y);
    return head->forward(y);
  }
};

Model make_tower() { return std::make_shared<TowerImpl>(); }
TowerImpl& as_tower(nn::Module& module) {
  return dynamic_cast<TowerImpl&>(module);
}
Tensor tower_loss(nn::Module& module, const Turn& turn) {
  return square_loss(as_tower(module).forward(input(turn)));
}

FullyShardOptions options_on(const World& world) {
  return options_for(init_device_mesh(world));
}

Names unit_names(nn::Module& module) {
  Names names;
  for (const auto& unit : units_below(module)) names.push_back(unit->name());
  return names;
}

/// Three steps: losses, and this rank's part of the weights.
std::pair<std::vector<double>, Tensors> train(nn::Module& model, int rank) {
  torch::optim::Adam optimizer(model.parameters(), 0.01);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = tower_loss(model, {rank, step, 1});
    loss.backward();
    losses.push_back(loss.item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  Tensors weights;
  for (const auto& item : model.named_parameters()) {
    weights[item.key()] = local(item.value()).clone();
  }
  return {losses, weights};
}

void expect_equals_by_hand(const UnitPolicy& policy, const Names& want) {
  on_ranks(2, [&](const World& world) {
    Model chosen = build(make_tower);
    auto names = fully_shard_auto(*chosen, policy, options_on(world));
    EXPECT_EQ(names, want);
    std::erase(names, "");
    Model by_hand = build_sharded(world, make_tower, names);
    EXPECT_EQ(unit_names(*chosen), unit_names(*by_hand));
    const auto [losses, weights] = train(*chosen, world.rank());
    const auto [want_losses, want_weights] = train(*by_hand, world.rank());
    EXPECT_EQ(losses, want_losses);
    ASSERT_EQ(weights.size(), want_weights.size());
    for (const auto& [name, weight] : weights) {
      EXPECT_TRUE(weight.equal(want_weights.at(name))) << name;
    }
  });
}

TEST_F(Auto, ByTypeTakesHoldersAndModuleTypes) {
  const Names blocks = {"layers.0", "layers.1", "layers.2", "head.3", ""};
  expect_equals_by_hand(units_by_type<Block>(), blocks);
  expect_equals_by_hand(units_by_type<BlockImpl>(), blocks);
}

TEST_F(Auto, ByTypeGoesFromTheBottomUpWhenTypesAreNested) {
  expect_equals_by_hand(
      units_by_type<nn::Linear, BlockImpl>(),
      {"door", "layers.0.f", "layers.0", "layers.1.f", "layers.1", "layers.2.f",
       "layers.2", "head.0", "head.2", "head.3.f", "head.3"});
}

TEST_F(Auto, ByRepeatedChildrenTakesListsWithEnoughChildrenOfOneType) {
  expect_equals_by_hand(units_by_repeated_children(3),
                        {"layers.0", "layers.1", "layers.2", ""});
  expect_equals_by_hand(
      units_by_repeated_children(2),
      {"layers.0", "layers.1", "layers.2", "head.0", "head.2", ""});
}

// A Block(8, 8) has 88 elements, 72 of them in its Linear; the head's Linears
// have 72 each, its Block(8, 3) 33; the door 56.
TEST_F(Auto, BySizeJoinsWhatIsSmallInItsParent) {
  expect_equals_by_hand(units_by_size(73),
                        {"layers.0", "layers.1", "layers.2", "head", ""});
  // The list of layers has 264, but a mere list is no unit.
  expect_equals_by_hand(units_by_size(170), {"head", ""});
  // The Linears go first, and what is left of a Block is small.
  expect_equals_by_hand(
      units_by_size(72),
      {"layers.0.f", "layers.1.f", "layers.2.f", "head.0", "head.2", ""});
}

TEST_F(Auto, AUsersFunctionSeesNameParentAndWhatIsLeftToTake) {
  struct Seen {
    const nn::Module* parent;
    int64_t numel;
  };
  on_ranks(2, [](const World& world) {
    Model model = build(make_tower);
    auto& tower = as_tower(*model);
    std::map<std::string, Seen> seen;
    const auto policy = [&](const UnitCandidate& candidate) {
      seen[candidate.name] = {&candidate.parent, candidate.numel};
      return candidate.name == "layers.1.f" || candidate.name == "head.0";
    };
    auto options = options_on(world);
    options.ignored_params = {tower.door->bias};
    EXPECT_EQ(fully_shard_auto(*model, policy, options),
              Names({"layers.1.f", "head.0", ""}));
    EXPECT_EQ(seen.size(), 13u);  // not the Tanh, nor the root
    EXPECT_EQ(seen.at("door").numel, 48);
    EXPECT_EQ(seen.at("layers.1").numel, 16);
    EXPECT_EQ(seen.at("layers.0").numel, 88);
    EXPECT_EQ(seen.at("head").numel, 72 + 33);
    EXPECT_EQ(seen.at("head.3.f").parent, tower.head[3].get());
    EXPECT_EQ(seen.at("layers").parent, &tower);
  });
}

TEST_F(Auto, ASharedModuleIsOneUnitAndTheRootMayBeLeftWithNothing) {
  struct Twice : nn::Module {
    nn::Linear a{nullptr}, again{nullptr};
    Twice() {
      a = register_module("a", nn::Linear(4, 4));
      again = register_module("again", a);
    }
  };
  on_ranks(2, [](const World& world) {
    Model model = build([] { return std::make_shared<Twice>(); });
    EXPECT_EQ(fully_shard_auto(*model, units_by_type<nn::Linear>(),
                               options_on(world)),
              Names({"a"}));
  });
}

TEST_F(Auto, UnitsThatAreThereAlreadyStay) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_tower);
    const auto options = options_on(world);
    fully_shard(*as_tower(*model).layers[1], options);
    EXPECT_EQ(fully_shard_auto(*model, units_by_size(80), options),
              Names({"layers.0", "layers.2", "head", ""}));
    tower_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

void expect_refused(const UnitPolicy& policy, const std::string& part) {
  on_ranks(2, [&](const World& world) {
    Model model = build(make_tower);
    const auto options = options_on(world);
    EXPECT_TRUE(says(
        message_of([&] { fully_shard_auto(*model, policy, options); }), part));
    EXPECT_TRUE(units_below(*model).empty());
    // As good as new.
    fully_shard_auto(*model, units_by_type<Block>(), options);
    tower_loss(*model, {world.rank(), 0, 1}).backward();
  });
}

TEST_F(Auto, APolicyThatChoosesNothingIsAnError) {
  expect_refused(units_by_type<nn::Conv2d>(), "chooses none of the 13 modules");
  expect_refused(units_by_size(1'000'000), "chooses none");
  expect_refused(UnitPolicy(), "policy is empty");
}

TEST_F(Auto, APolicyThatChoosesAListIsAnError) {
  expect_refused(units_by_type<nn::ModuleList>(), "a mere list");
  expect_refused([](const UnitCandidate& c) { return c.name == "layers"; },
                 "chooses 'layers', a torch::nn::ModuleListImpl");
}

TEST_F(Auto, AModuleThatNoUnitCanHoldIsFoundBeforeAnythingIsSharded) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_tower);
    // The last unit of all; the blocks before it are fine.
    as_tower(*model).head->ptr<nn::LinearImpl>(2)->register_parameter(
        "count", torch::ones({}));
    EXPECT_TRUE(says(message_of([&] {
                       fully_shard_auto(*model, units_by_type<Block>(),
                                        options_on(world));
                     }),
                     "head.2.count"));
    EXPECT_TRUE(units_below(*model).empty());
  });
}

TEST_F(Auto, AModuleThatIsShardedAlreadyIsAnError) {
  on_ranks(2, [](const World& world) {
    Model model = build(make_tower);
    const auto options = options_on(world);
    const auto refused = [&] {
      return message_of(
          [&] { fully_shard_auto(*model, units_by_type<Block>(), options); });
    };
    fully_shard(*as_tower(*model).layers[1], options);
    EXPECT_TRUE(
        says(refused(), "chooses 'layers.1', which is sharded already"));
    EXPECT_EQ(units_below(*model).size(), 1u);
    fully_shard(*model, options);
    EXPECT_TRUE(says(refused(), "is sharded already"));
  });
}

TEST_F(Auto, CountsThatCannotBeMeantAreErrors) {
  EXPECT_THROW((void)units_by_repeated_children(0), InvalidArgument);
  EXPECT_THROW((void)units_by_size(0), InvalidArgument);
}

}  // namespace
}  // namespace tessera::test
