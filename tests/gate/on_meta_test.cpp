// on_meta: what goes to the meta device and what keeps its values; materialize.
#include <thread>

#include "tessera/module/on_meta.h"
#include "tessera/shard/materialize.h"
#include "tests/support/net.h"

namespace tessera::test {
namespace {

using OnMeta = DoubleByDefault;

struct Case {
  const char* name;
  std::function<Tensor()> make;
};

TEST_F(OnMeta, UninitialisedAllocationsHaveNoMemory) {
  const std::vector<Case> cases = {
      {"empty", [] { return torch::empty({3}); }},
      {"empty().normal_", [] { return torch::empty({3}).normal_(); }},
      {"empty().copy_",
       [] { return torch::empty({3}).copy_(torch::ones({3})); }},
      {"empty_strided",
       [] {
         return torch::empty_strided({2, 3}, {3, 1});
       }},
      {"zeros_like(empty)",
       [] { return torch::zeros_like(torch::empty({3})); }},
      {"empty_like(empty)",
       [] { return torch::empty_like(torch::empty({3})); }},
      {"init::kaiming_uniform_",
       [] {
         return nn::init::kaiming_uniform_(torch::empty({3, 3}));
       }},
  };
  for (const Case& each : cases) {
    EXPECT_TRUE(on_meta(each.make).is_meta()) << each.name;
  }
}

TEST_F(OnMeta, WhatHasAValueStaysReal) {
  static double numbers[3] = {1, 2, 3};
  const Tensor real = torch::ones({3});
  const std::vector<Case> cases = {
      {"zeros", [] { return torch::zeros({3}); }},
      {"ones", [] { return torch::ones({3}); }},
      {"eye", [] { return torch::eye(3); }},
      {"full", [] { return torch::full({3}, 2.0); }},
      {"arange", [] { return torch::arange(3.0); }},
      {"linspace", [] { return torch::linspace(0, 1, 3); }},
      {"tensor",
       [] {
         return torch::tensor({1.0, 2.0});
       }},
      {"tensor of integers",
       [] {
         return torch::tensor({1, 2});
       }},
      {"randn", [] { return torch::randn({3}); }},
      {"rand().mul_", [] { return torch::rand({3}).mul_(0.1); }},
      {"randperm", [] { return torch::randperm(3); }},
      {"from_blob",
       [] { return torch::from_blob(numbers, {3}, torch::kDouble); }},
      {"rotary table",
       [] {
         return torch::outer(torch::arange(3.0),
                             torch::pow(10.0, -torch::arange(2.0)))
             .cos();
       }},
      {"tril(ones)",
       [] {
         return torch::tril(torch::ones({3, 3}));
       }},
      {"empty_like(real)", [&] { return torch::empty_like(real); }},
      {"new_empty of real", [&] { return real.new_empty({3}).fill_(1); }},
      {"clone", [&] { return real.clone(); }},
      {"cat",
       [&] {
         return torch::cat({real, real});
       }},
      {"to and back", [&] { return real.to(torch::kHalf).to(torch::kDouble); }},
      {"an explicit device",
       [] {
         return torch::empty({3}, torch::TensorOptions(torch::kCPU)).fill_(1);
       }},
      {"empty_like(real) filled",
       [&] { return torch::empty_like(real).fill_(2); }},
      {"another thread",
       [] {
         Tensor made;
         std::thread([&] { made = torch::empty({2}).fill_(1); }).join();
         return made;
       }},
  };
  for (const Case& each : cases) {
    const Tensor made = on_meta(each.make);
    EXPECT_FALSE(made.is_meta()) << each.name;
    EXPECT_EQ(made.numel(), made.clone().numel()) << each.name;
  }
  EXPECT_TRUE(on_meta([] {
                return torch::tensor({1.0, 2.0});
              }).equal(torch::tensor({1.0, 2.0})));
  EXPECT_TRUE(
      on_meta([] { return torch::arange(3.0); }).equal(torch::arange(3.0)));
}

TEST_F(OnMeta, ReadingAValueThatIsNotThereIsLoud) {
  const Tensor real = torch::ones({3});
  const std::vector<Case> cases = {
      {"item",
       [] {
         const Tensor t = torch::empty({3}).normal_();
         return t / t.norm().item<double>();
       }},
      {"real.copy_(meta)",
       [&] { return real.clone().copy_(torch::empty({3})); }},
      {"real * meta", [&] { return real * torch::empty({3}); }},
      {"data_ptr",
       [] {
         const Tensor t = torch::empty({3});
         t.data_ptr<double>()[0] = 1;
         return t;
       }},
  };
  for (const Case& each : cases) {
    EXPECT_NE(message_of([&] { (void)on_meta(each.make); }), "") << each.name;
  }
  EXPECT_FALSE(torch::empty({3}).is_meta()) << "the scope has ended";
}

TEST_F(OnMeta, ModulesBuildTheirChildrenOnMetaToo) {
  const Model model = on_meta([] { return make_net(); });
  for (const auto& item : model->named_parameters()) {
    const bool has_value =
        item.key().ends_with("gain") || item.key().ends_with("extra");
    EXPECT_EQ(item.value().is_meta(), !has_value) << item.key();
  }
}

TEST_F(OnMeta, LayersMadeFromValuesKeepThem) {
  const auto prelu = on_meta([] { return nn::PReLU(); });
  EXPECT_FALSE(prelu->weight.is_meta());
  EXPECT_EQ(prelu->weight.item<double>(), 0.25);
  const Tensor given = torch::ones({3, 2});
  const auto embedding = on_meta(
      [&] { return nn::Embedding(nn::EmbeddingOptions(3, 2)._weight(given)); });
  EXPECT_FALSE(embedding->weight.is_meta());
  const auto norm = on_meta([] { return nn::BatchNorm1d(3); });
  EXPECT_TRUE(norm->weight.is_meta());
  EXPECT_FALSE(norm->running_mean.is_meta());
}

TEST_F(OnMeta, ScopesDoNotNest) {
  EXPECT_TRUE(says(message_of([] {
                     (void)on_meta(
                         [] { return on_meta([] { return make_net(); }); });
                   }),
                   "inside another on_meta"));
  EXPECT_FALSE(torch::empty({3}).is_meta());
}

// materialize -----------------------------------------------------------------

Tensors materialized(int world_size, uint64_t seed) {
  Tensors values;
  on_ranks(world_size, [&](const World& world) {
    Model model = on_meta([] { return make_net(); });
    shard(*model, options_for(init_device_mesh(world)), kUnits);
    materialize(*model, {.seed = seed, .init = [](nn::Module& m, auto&) {
                           auto* block = dynamic_cast<BlockImpl*>(&m);
                           if (!block) return;
                           nn::init::ones_(block->gain);
                           nn::init::constant_(block->extra, 0.3);
                         }});
    const Tensors mine = full_values(*model);
    if (world.rank() == 0) values = mine;
    plain_loss(*model, {world.rank(), 0, 1}).backward();
  });
  return values;
}

TEST_F(OnMeta, OneSeedGivesTheSameWeightsAtAnyWorldSizeBitForBit) {
  const Tensors want = materialized(1, 42);
  for (const int world_size : {2, 3, 4}) {
    for (const auto& [name, tensor] : materialized(world_size, 42)) {
      EXPECT_TRUE(tensor.equal(want.at(name))) << name << " W " << world_size;
    }
  }
  EXPECT_FALSE(
      materialized(2, 43).at("a.f.weight").equal(want.at("a.f.weight")));
}

TEST_F(OnMeta, AUnitWithoutValuesIsNamedWhenItIsTouched) {
  on_ranks(2, [](const World& world) {
    Model model = on_meta([] { return make_net(); });
    shard(*model, options_for(init_device_mesh(world)), kUnits);
    const std::string message = message_of([&] {
      plain_loss(*model, {world.rank(), 0, 1});
    });
    EXPECT_TRUE(says(message, "unit 'a'"));
    EXPECT_TRUE(says(message, "materialize"));
  });
}

struct UnknownImpl : nn::Module {
  nn::Linear f{nullptr};
  Tensor mystery;
  explicit UnknownImpl(bool as_buffer) {
    f = register_module("f", nn::Linear(6, 8));
    mystery = as_buffer ? register_buffer("mystery", torch::empty({4}))
                        : register_parameter("mystery", torch::empty({4}));
  }
};

TEST_F(OnMeta, AParameterThatNothingInitialisesIsNamed) {
  on_ranks(2, [](const World& world) {
    auto model = on_meta([] { return std::make_shared<UnknownImpl>(false); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    EXPECT_TRUE(
        says(message_of([&] { materialize(*model); }), "parameter 'mystery'"));
    materialize(*model, {.init = [](nn::Module& m, const std::string& name) {
      if (name.empty()) dynamic_cast<UnknownImpl&>(m).mystery.fill_(5);
    }});
    EXPECT_TRUE(full_values(*model)["mystery"].eq(5).all().item<bool>());
  });
}

TEST_F(OnMeta, ABufferThatNothingInitialisesIsNamed) {
  on_ranks(2, [](const World& world) {
    auto model = on_meta([] { return std::make_shared<UnknownImpl>(true); });
    fully_shard(*model, options_for(init_device_mesh(world)));
    EXPECT_TRUE(
        says(message_of([&] { materialize(*model); }), "buffer 'mystery'"));
  });
}

TEST_F(OnMeta, FullParametersMayGiveTheFirstValues) {
  on_ranks(2, [](const World& world) {
    Model model = on_meta([] { return make_net(); });
    shard(*model, options_for(init_device_mesh(world)), kUnits);
    {
      FullParameters full(*model);
      torch::NoGradGuard no_grad;
      for (Tensor& p : model->parameters()) p.fill_(0.5);
    }
    plain_loss(*model, {world.rank(), 0, 1}).backward();
    EXPECT_TRUE(full_values(*model)["c.bias"].eq(0.5).all().item<bool>());
  });
}

}  // namespace
}  // namespace tessera::test
