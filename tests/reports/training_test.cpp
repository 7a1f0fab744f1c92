// Public reports about gradients, optimizers, freezing and hangs, each as a test.
#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/find_units.h"
#include "tessera/tensor/spread.h"
#include "tests/reports/reports.h"

namespace reports {
namespace {

nn::Linear linear(int64_t in, int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

struct StackImpl : nn::Module {
  nn::Linear a = linear(4, 5), b = linear(5, 3), c = linear(3, 2);
  StackImpl() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
    set_numbers(*this);
  }
  Tensor encode(const Tensor& x) { return b(torch::tanh(a(x))); }
  Tensor forward(const Tensor& x) { return c(torch::tanh(encode(x))); }
};
TORCH_MODULE(Stack);

void shard(Stack& model, const World& world) {
  const FullyShardOptions how = options(world);
  for (nn::Module* unit : {model->a.get(), model->b.get()}) {
    tessera::fully_shard(*unit, how);
  }
  tessera::fully_shard(*model, how);
}

// Rows of a global batch of 12.
Tensor rows(const World& world) {
  const int64_t each = 12 / world.size();
  return numbers({12, 4}, 1.0).narrow(0, world.rank() * each, each);
}

TEST(Report, GradientsOnGlooAreTheMeanOverRanks) {  // A11
  Stack plain;
  plain->forward(numbers({12, 4}, 1.0)).pow(2).mean().backward();
  run_ranks(2, [&](const World& world) {
    Stack model;
    shard(model, world);
    model->forward(rows(world)).pow(2).mean().backward();
    torch::optim::SGD(model->parameters(), 1.0).step();
    torch::NoGradGuard no_grad;
    std::vector<Tensor> want;
    for (const Tensor& p : plain->parameters()) want.push_back(p - p.grad());
    expect_near(whole(*model), want);
  }, kDeadline);
}

TEST(Report, ClipReturnsTheNormOfAllRanksOnEachOfThem) {  // A12
  for (const double p : {1.0, 2.0, 3.0, double(INFINITY)}) {
    Stack plain;
    plain->forward(numbers({12, 4}, 1.0)).pow(2).mean().backward();
    const double want =
        nn::utils::clip_grad_norm_(plain->parameters(), 0.01, p);
    run_ranks(4, [&](const World& world) {
      Stack model;
      shard(model, world);
      model->forward(rows(world)).pow(2).mean().backward();
      const Tensor norm = tessera::clip_grad_norm_(model->parameters(), 0.01,
                                                   {.norm_type = p});
      EXPECT_NEAR(norm.item<double>(), want, 1e-5 * want) << "p = " << p;
    }, kDeadline);
  }
}

TEST(Report, ARankWithoutAnyGradientTakesPartInTheClip) {  // A14
  run_ranks(4, [](const World& world) {
    One model(std::vector<int64_t>{1});
    tessera::fully_shard(*model, options(world));
    model->forward(torch::full({1}, 3.0)).backward();
    const Tensor norm = tessera::clip_grad_norm_(model->parameters(), 1.0);
    EXPECT_NEAR(norm.item<double>(), 3.0, 1e-6);
  }, kDeadline);
}

struct BranchesImpl : nn::Module {
  nn::Linear a = linear(4, 2), b = linear(4, 2);
  BranchesImpl() {
    register_module("a", a);
    register_module("b", b);
    set_numbers(*this);
  }
};
TORCH_MODULE(Branches);

TEST(Report, BranchesOfAUnitUsedOnSomeRanksOnlyTrainAsInOneProcess) {  // A18
  Branches plain;
  const Tensor x = numbers({3, 4}, 1.0);
  (plain->a(x).sum() + plain->b(x).sum()).mul(0.5).backward();
  run_ranks(2, [&](const World& world) {
    Branches model;
    tessera::fully_shard(*model, options(world));
    auto& branch = world.rank() == 0 ? model->a : model->b;
    branch(x).sum().backward();
    torch::optim::SGD(model->parameters(), 1.0).step();
    torch::NoGradGuard no_grad;
    std::vector<Tensor> want;
    for (const Tensor& p : plain->parameters()) want.push_back(p - p.grad());
    expect_near(whole(*model), want);
  }, kDeadline);
}

TEST(Report, UnitsUsedOnSomeRanksOnlyEndAllRanksWithTheUnitsNamed) {  // A18
  const auto message = message_of<tessera::CommError>([] {
    run_ranks(2, [](const World& world) {
      Branches model;
      const FullyShardOptions how = options(world);
      tessera::fully_shard(*model->a, how);
      tessera::fully_shard(*model->b, how);
      tessera::fully_shard(*model, how);
      auto& branch = world.rank() == 0 ? model->a : model->b;
      branch(numbers({3, 4})).sum().backward();
    }, 4s);
  });
  EXPECT_TRUE(says(message, "a") && says(message, "b") &&
              says(message, "all_gather"))
      << message;
}

TEST(Report, AUnitWhoseParametersAreUnusedIsLeftShardedAndTheNextStepWorks) {
  run_ranks(2, [](const World& world) {  // A19
    Stack model;
    shard(model, world);
    model->a(rows(world)).sum().backward();  // b and c take no part
    EXPECT_FALSE(model->parameters()[1].grad().defined());
    for (const auto& unit : tessera::units_below(*model)) {
      EXPECT_FALSE(unit->gathered()) << unit->name();
    }
    model->zero_grad();
    model->forward(rows(world)).sum().backward();
    for (const Tensor& p : model->parameters()) {
      EXPECT_TRUE(p.grad().defined());
    }
  }, kDeadline);
}

TEST(Report, TwoForwardsThenTwoBackwardsAddTheirGradients) {  // A23
  Stack plain;
  const Tensor x = numbers({12, 4}, 1.0);
  plain->forward(x).pow(2).mean().backward();
  plain->forward(x * 2).pow(2).mean().backward();
  run_ranks(2, [&](const World& world) {
    Stack model;
    shard(model, world);
    const Tensor first = model->forward(rows(world)).pow(2).mean();
    const Tensor second = model->forward(rows(world) * 2).pow(2).mean();
    first.backward();
    second.backward();
    torch::optim::SGD(model->parameters(), 1.0).step();
    torch::NoGradGuard no_grad;
    std::vector<Tensor> want;
    for (const Tensor& p : plain->parameters()) want.push_back(p - p.grad());
    expect_near(whole(*model), want);
  }, kDeadline);
}

TEST(Report, AnOptimizerMadeAfterAForwardStillTrains) {  // A25
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [](const World& world) {
      One model(std::vector<int64_t>{8});
      tessera::fully_shard(*model, options(world));
      const auto before = whole(*model);
      (void)model->forward(torch::ones({8}));
      torch::optim::SGD sgd(model->parameters(), 0.1);
      model->forward(torch::ones({8})).backward();
      sgd.step();
      expect_near(whole(*model), {before[0] - 0.1});
    }, kDeadline);
  }
}

TEST(Report, AnOptimizerMadeBeforeShardingIsNamed) {  // A26
  run_ranks(2, [](const World& world) {
    Stack model;
    torch::optim::Adagrad early(model->parameters(), 0.1);
    const auto message = message_of<tessera::InvalidState>(
        [&] { tessera::fully_shard(*model, options(world)); });
    EXPECT_TRUE(says(message, "optimizer") && says(message, "a.weight"))
        << message;
  }, kDeadline);
}

struct TwoInputsImpl : nn::Module {
  nn::Linear frozen = linear(4, 4), trained = linear(4, 4);
  TwoInputsImpl() {
    register_module("frozen", frozen);
    register_module("trained", trained);
    set_numbers(*this);
    frozen->weight.requires_grad_(false);
  }
  Tensor forward(const Tensor& used, const Tensor& unused) {
    (void)unused;
    return trained(frozen(used)).sum();
  }
};
TORCH_MODULE(TwoInputs);

TEST(Report, AFrozenLayerWithAnUnusedTrainedInputTrains) {  // A29
  run_ranks(2, [](const World& world) {
    TwoInputs model;
    const FullyShardOptions how = options(world);
    tessera::fully_shard(*model->frozen, how);
    tessera::fully_shard(*model, how);
    const auto before = whole(*model);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const Tensor learn = numbers({2, 4}).requires_grad_();
    model->forward(numbers({2, 4}), learn).backward();
    sgd.step();
    const auto after = whole(*model);
    EXPECT_TRUE(after[0].equal(before[0]));
    EXPECT_FALSE(after[1].equal(before[1]));
    for (const auto& unit : tessera::units_below(*model)) {
      EXPECT_FALSE(unit->gathered()) << unit->name();
    }
  }, kDeadline);
}

TEST(Report, OnlyTrainedElementsAreReducedAndStored) {  // A30
  run_ranks(2, [](const World& world) {
    TwoInputs model;
    tessera::fully_shard(*model, options(world));
    model->forward(numbers({2, 4}), {}).backward();
    for (const auto& group : tessera::units_below(*model)[0]->groups()) {
      const bool has_grad = group->master()->grad().defined();
      EXPECT_EQ(has_grad, group->num_trainable() > 0);
    }
  }, kDeadline);
}

TEST(Report, AModelFrozenAtItsFirstForwardTrainsOnceUnfrozen) {  // A31
  run_ranks(2, [](const World& world) {
    Stack model;
    for (Tensor& p : model->parameters()) p.requires_grad_(false);
    auto bf16 = options(world);
    bf16.mp_policy = {.param_dtype = torch::kBFloat16,
                      .reduce_dtype = torch::kFloat};
    tessera::fully_shard(*model, bf16);
    (void)model->forward(rows(world));
    for (Tensor& p : model->parameters()) p.requires_grad_(true);
    model->forward(rows(world)).sum().backward();
    for (const Tensor& p : model->parameters()) {
      ASSERT_TRUE(p.grad().defined());
      EXPECT_EQ(p.grad().scalar_type(), torch::kFloat);
    }
  }, kDeadline);
}

TEST(Report, AnyMethodOfAShardedModuleWorks) {  // A45
  Stack plain;
  const Tensor want = plain->encode(numbers({12, 4}, 1.0)).detach();
  run_ranks(2, [&](const World& world) {
    Stack model;
    shard(model, world);
    expect_near({model->encode(numbers({12, 4}, 1.0)).detach()}, {want});
  }, kDeadline);
}

TEST(Report, AnUnevenNumberOfBatchesEndsWithinTheTimeOutAndNamesTheUnit) {
  const auto message = message_of<tessera::CommError>([] {  // A47
    run_ranks(2, [](const World& world) {
      Stack model;
      shard(model, world);
      const int batches = world.rank() == 0 ? 3 : 2;
      for (int i = 0; i < batches; ++i) {
        model->forward(rows(world)).sum().backward();
      }
      if (world.rank() == 1) std::this_thread::sleep_for(8s);
    }, 2s);
  });
  EXPECT_TRUE(says(message, "rank") && says(message, "all_gather")) << message;
}

}  // namespace
}  // namespace reports
