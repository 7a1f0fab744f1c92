// Public reports about shapes, dtypes and construction, each as a test.
#include "tessera/module/initializers.h"
#include "tessera/module/on_meta.h"
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/materialize.h"
#include "tessera/tensor/spread.h"
#include "tests/reports/reports.h"

namespace reports {
namespace {

struct TiedLmImpl : nn::Module {
  nn::Embedding embed{7, 4};
  nn::Linear head{nn::LinearOptions(4, 7).bias(false)};
  TiedLmImpl() {
    register_module("embed", embed);
    register_module("head", head);
    head->weight = embed->weight;
  }
  Tensor loss() {
    const Tensor tokens = torch::arange(7, torch::kLong);
    return nn::functional::cross_entropy(head(embed(tokens)), tokens.flip(0));
  }
};
TORCH_MODULE(TiedLm);

// Of SGD with rate 1, each distinct parameter once.
void five_steps(TiedLmImpl& module, const std::function<Tensor()>& loss) {
  for (int step = 0; step < 5; ++step) {
    loss().backward();
    torch::NoGradGuard no_grad;
    for (const Tensor& parameter : module.parameters()) {
      if (parameter.grad().defined()) {
        tessera::local(parameter).sub_(tessera::local(parameter.grad()));
      }
    }
    module.zero_grad();
  }
}

TEST(Report, TiedWeightOfAnUnevenVocabularyIsUpdatedOnTheLastRank) {  // A1
  TiedLm plain;
  set_numbers(*plain);
  five_steps(*plain, [&] { return plain->loss(); });
  const Tensor want = plain->embed->weight.detach();
  for (const bool own_unit : {false, true}) {
    run_ranks(3, [&](const World& world) {
      TiedLm model;
      set_numbers(*model);
      const FullyShardOptions how = options(world);
      if (own_unit) tessera::fully_shard(*model->embed, how);
      tessera::fully_shard(*model, how);
      five_steps(*model, [&] { return model->loss(); });
      expect_near({whole(*model)[0]}, {want}, 2e-6);
    }, kDeadline);
  }
}

TEST(Report, FirstDimSmallerThanTheWorldTrainsAndClips) {  // A2
  const Tensor x = numbers({2, 5}, 1.0);
  One plain(std::vector<int64_t>{2, 5});
  torch::optim::AdamW reference(plain->parameters(), 0.1);
  plain->forward(x).backward();
  const double norm = nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
  reference.step();
  run_ranks(4, [&](const World& world) {
    One model(std::vector<int64_t>{2, 5});
    tessera::fully_shard(*model, options(world));
    torch::optim::AdamW optimizer(model->parameters(), 0.1);
    model->forward(x).backward();
    EXPECT_NEAR(tessera::clip_grad_norm_(model->parameters(), 0.5)
                    .item<double>(),
                norm, 1e-6 * norm);
    optimizer.step();
    expect_near(whole(*model), {plain->w.detach()});
  }, kDeadline);
}

TEST(Report, EmptyShardBuiltOnMetaCountsAsMaterialized) {  // A3
  run_ranks(2, [](const World& world) {
    auto model = tessera::on_meta([] {
      return nn::Linear(nn::LinearOptions(4, 1).bias(false));
    });
    tessera::fully_shard(*model, options(world));
    tessera::materialize(*model, {.seed = 3});
    EXPECT_EQ(model->forward(torch::ones({2, 4})).isnan().any().item<bool>(),
              false);
  }, kDeadline);
}

TEST(Report, ScalarParameterIsRefusedWithItsNameAndTheRemedy) {  // A8
  run_ranks(2, [](const World& world) {
    One model(std::vector<int64_t>{});
    const auto message = message_of<tessera::InvalidArgument>(
        [&] { tessera::fully_shard(*model, options(world)); });
    EXPECT_TRUE(says(message, "'w'") && says(message, "1-D")) << message;
    EXPECT_FALSE(tessera::is_fully_sharded(*model));
  }, kDeadline);
}

TEST(Report, NonContiguousParameterIsRefusedWithShapeAndStrides) {  // A9
  run_ranks(2, [](const World& world) {
    nn::Linear model(nn::LinearOptions(6, 4).bias(false));
    model->weight.set_data(numbers({6, 4}).t());
    const auto message = message_of<tessera::Unsupported>(
        [&] { tessera::fully_shard(*model, options(world)); });
    EXPECT_TRUE(says(message, "'weight'") && says(message, "[4, 6]") &&
                says(message, "[1, 4]"))
        << message;
  }, kDeadline);
}

struct MixedImpl : nn::Module {
  nn::Linear linear{3, 3};
  Tensor scale;
  MixedImpl() {
    register_module("linear", linear);
    linear->to(torch::kDouble);
    scale = register_parameter("scale", torch::ones({3}));
  }
  Tensor loss() {
    const Tensor y = linear(torch::ones({2, 3}, torch::kDouble));
    return (y.to(torch::kFloat) * scale).pow(2).sum();
  }
};
TORCH_MODULE(Mixed);

TEST(Report, DtypesMixedInOneUnitTravelInGroupsOfTheirOwn) {  // A10
  Mixed plain;
  set_numbers(*plain);
  plain->loss().backward();
  run_ranks(2, [&](const World& world) {
    Mixed model;
    set_numbers(*model);
    tessera::fully_shard(*model, options(world));
    model->loss().backward();
    const auto parameters = model->parameters();
    for (const Tensor& shard : parameters) {
      ASSERT_TRUE(shard.grad().defined());
      EXPECT_EQ(shard.grad().scalar_type(), shard.scalar_type());
    }
    EXPECT_EQ(tessera::units_below(*model)[0]->groups().size(), 2u);
    torch::optim::SGD(parameters, 0.1).step();
    torch::NoGradGuard no_grad;
    std::vector<Tensor> want;
    for (const Tensor& p : plain->parameters()) {
      want.push_back(p - 0.1 * p.grad());
    }
    expect_near(whole(*model), want);
  }, kDeadline);
}

struct UnsetImpl : nn::Module {
  Tensor w, table;
  UnsetImpl() {
    w = register_parameter("w", torch::empty({4}));
    table = register_buffer("table", torch::tensor({1.f, 2.f, 3.f}));
  }
};
TORCH_MODULE(Unset);

TEST(Report, BuffersWithValuesSurviveConstructionOnMeta) {  // A38
  auto model = tessera::on_meta([] { return Unset(); });
  EXPECT_TRUE(model->w.is_meta());
  EXPECT_TRUE(model->table.equal(torch::tensor({1.f, 2.f, 3.f})));
}

TEST(Report, ParameterThatNobodyInitializedIsAnErrorWithItsName) {  // A39
  run_ranks(2, [](const World& world) {
    auto model = tessera::on_meta([] { return Unset(); });
    tessera::fully_shard(*model, options(world));
    const auto message = message_of<tessera::InvalidState>(
        [&] { tessera::materialize(*model); });
    EXPECT_TRUE(says(message, "'w'")) << message;
  }, kDeadline);
}

TEST(Report, OneSeedGivesOneSetOfWeightsAtAnyWorldSize) {  // A41
  std::vector<Tensor> first;
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](const World& world) {
      auto model = tessera::on_meta([] { return nn::Linear(8, 8); });
      tessera::fully_shard(*model, options(world));
      tessera::materialize(*model, {.seed = 11});
      const auto values = whole(*model);
      if (world.rank() != 0) return;
      if (first.empty()) first = values;
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_TRUE(values[i].equal(first[i])) << "W = " << ranks;
      }
    }, kDeadline);
  }
}

}  // namespace
}  // namespace reports
