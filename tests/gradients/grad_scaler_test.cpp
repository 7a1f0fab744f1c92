// GradScaler by itself: torch.amp.GradScaler's numbers, its order of calls, its
// errors.
#include "tessera/optim/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/optim/adamw.h"
#include "tessera/state/scaler_state.h"
#include "tests/support/temporary_folder.h"

namespace tessera {
namespace {

using testing::TemporaryFolder;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Model {
  at::Tensor p = torch::ones({4}).set_requires_grad(true);
  torch::optim::SGD optimizer{{p}, torch::optim::SGDOptions(0.5)};

  void backward(GradScaler& scaler, double slope = 1) {
    optimizer.zero_grad();
    scaler.scale((p * slope).sum()).backward();
  }
  double first() const { return p[0].item<double>(); }
};

template <class E, class Body>
void expect_error(Body&& body, const std::string& part) {
  try {
    body();
    FAIL() << "no error; expected: " << part;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << error.what();
  }
}

// Printed by torch.amp.GradScaler("cpu", init_scale=1000, growth_factor=3,
// backoff_factor=0.25, growth_interval=3) of PyTorch 2.11 around SGD(lr=0.5)
// and the loss (p * (step % 5 + 1)).sum() of 4 ones, with NaN put into p.grad
// at the even ones of these steps and infinity at the odd ones.
const std::set<int> kBadSteps = {2, 6, 7, 13, 14, 15};
struct Row {
  double scale;
  int64_t growth_tracker;
  double parameter;
};
const Row kPython[] = {{1000.0, 1, 0.5},         {1000.0, 2, -0.5},
                       {250.0, 0, -0.5},         {250.0, 1, -2.5},
                       {250.0, 2, -5.0},         {750.0, 0, -5.5},
                       {187.5, 0, -5.5},         {46.875, 0, -5.5},
                       {46.875, 1, -7.5},        {46.875, 2, -10.0},
                       {140.625, 0, -10.5},      {140.625, 1, -11.5},
                       {140.625, 2, -13.0},      {35.15625, 0, -13.0},
                       {8.7890625, 0, -13.0},    {2.197265625, 0, -13.0},
                       {2.197265625, 1, -14.0},  {2.197265625, 2, -15.5},
                       {6.591796875, 0, -17.5},  {6.591796875, 1, -20.0},
                       {6.591796875, 2, -20.5},  {19.775390625, 0, -21.5},
                       {19.775390625, 1, -23.0}, {19.775390625, 2, -25.0}};

TEST(GradScaler, FollowsPythonsScalesStepByStep) {
  Model model;
  GradScaler scaler({.init_scale = 1000,
                     .growth_factor = 3,
                     .backoff_factor = 0.25,
                     .growth_interval = 3});
  int step = 0;
  for (const Row& row : kPython) {
    const bool bad = kBadSteps.contains(step);
    model.backward(scaler, step % 5 + 1);
    if (bad) model.p.mutable_grad()[step % 4] = step % 2 ? kInfinity : NAN;
    EXPECT_EQ(scaler.step(model.optimizer), !bad) << step;
    scaler.update();
    EXPECT_EQ(scaler.state_dict().scale, row.scale) << step;
    EXPECT_EQ(scaler.state_dict().growth_tracker, row.growth_tracker) << step;
    EXPECT_EQ(model.first(), row.parameter) << step;
    ++step;
  }
}

TEST(GradScaler, HasPythonsDefaults) {
  const GradScalerState state = GradScaler().state_dict();
  EXPECT_EQ(state, (GradScalerState{.scale = 65536,
                                    .growth_factor = 2,
                                    .backoff_factor = 0.5,
                                    .growth_interval = 2000,
                                    .growth_tracker = 0}));
}

TEST(GradScaler, ScalesLossesOfAnyDtypeDifferentiably) {
  GradScaler scaler({.init_scale = 8});
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto loss = torch::full({}, 3, dtype).set_requires_grad(true);
    const at::Tensor scaled = scaler.scale(loss);
    // A scale such as 65536 is more than fp16 holds.
    EXPECT_EQ(scaled.scalar_type(), c10::promoteTypes(dtype, at::kFloat));
    EXPECT_EQ(scaled.item<double>(), 24);
    scaled.backward();
    EXPECT_EQ(loss.grad().item<double>(), 8);
  }
  const auto both = scaler.scale({torch::ones({2}), torch::zeros({})});
  EXPECT_TRUE(both[0].eq(8).all().item<bool>());
  EXPECT_EQ(both[1].item<double>(), 0);
  expect_error<InvalidArgument>([&] { (void)scaler.scale(at::Tensor()); },
                                "floating-point");
}

TEST(GradScaler, UnscalesGradientsForThoseWhoLookAtThem) {
  Model model;
  GradScaler scaler({.init_scale = 1024});
  model.backward(scaler, 3);
  EXPECT_EQ(model.p.grad()[0].item<double>(), 3072);
  scaler.unscale_(model.optimizer);
  EXPECT_EQ(model.p.grad()[0].item<double>(), 3);
  EXPECT_TRUE(scaler.step(model.optimizer));  // does not unscale again
  EXPECT_EQ(model.first(), 1 - 0.5 * 3);
}

TEST(GradScaler, AnOverflowBeforeClippingIsRememberedThoughClippingHidesIt) {
  Model model;
  GradScaler scaler;
  model.backward(scaler);
  model.p.mutable_grad()[2] = kInfinity;
  scaler.unscale_(model.optimizer);
  model.p.mutable_grad().zero_();
  EXPECT_FALSE(scaler.step(model.optimizer));
  EXPECT_EQ(model.first(), 1);
}

TEST(GradScaler, OneOptimizersOverflowLeavesTheOtherItsStepAndBacksOffOnce) {
  for (const bool bad_first : {false, true}) {
    Model good, bad;
    GradScaler scaler({.init_scale = 64});
    good.backward(scaler);
    bad.backward(scaler);
    bad.p.mutable_grad()[0] = kInfinity;
    if (bad_first) {
      EXPECT_FALSE(scaler.step(bad.optimizer));
    }
    EXPECT_TRUE(scaler.step(good.optimizer));
    if (!bad_first) {
      EXPECT_FALSE(scaler.step(bad.optimizer));
    }
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32);
    EXPECT_EQ(good.first(), 0.5);
    EXPECT_EQ(bad.first(), 1);
  }
}

thread_local int numbers_read = 0;
thread_local int fused_updates = 0;  // under way

std::unique_ptr<at::ObserverContext> note_start(
    const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name == "aten::_fused_adamw_") ++fused_updates;
  if (name == "aten::_local_scalar_dense" && !fused_updates) ++numbers_read;
  return nullptr;
}

void note_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (std::string(function.name()) == "aten::_fused_adamw_") --fused_updates;
}

/// Counts what would wait for a GPU: numbers that the host reads. The fused
/// update of the CPU reads whether to skip; that of a GPU does so there.
template <class Body>
int numbers_read_by(Body&& body) {
  numbers_read = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(note_start, note_end));
  body();
  at::removeCallback(handle);
  return numbers_read;
}

TEST(GradScaler, AStepOfAdamWReadsNothingOnTheHost) {
  const at::Tensor p = torch::ones({4}).set_requires_grad(true);
  AdamW fused({p}, torch::optim::AdamWOptions(0.1));
  torch::optim::SGD stock({p}, 0.1);
  GradScaler scaler;
  const auto step = [&](torch::optim::Optimizer& optimizer) {
    scaler.scale(p.sum()).backward();
    scaler.unscale_(optimizer);
    const int numbers = numbers_read_by([&] { scaler.step(optimizer); });
    scaler.update();
    optimizer.zero_grad();
    return numbers;
  };
  EXPECT_EQ(step(fused), 0);
  EXPECT_GT(step(stock), 0);
}

TEST(GradScaler, AdamWsSkippedStepLeavesWeightsMomentsAndCount) {
  const at::Tensor p = torch::ones({4}).set_requires_grad(true);
  const at::Tensor q = torch::ones({4}).set_requires_grad(true);
  AdamW scaled({p}, torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  AdamW plain({q}, torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  GradScaler scaler({.init_scale = 64, .growth_interval = 2});
  for (int step = 0; step < 5; ++step) {
    scaler.scale((p * (step + 1)).sum()).backward();
    const bool bad = step == 0 || step == 3;  // the first: no state yet
    if (bad) p.mutable_grad()[1] = step == 0 ? kInfinity : NAN;
    EXPECT_EQ(scaler.step(scaled), !bad) << step;
    scaler.update();
    scaled.zero_grad();
    if (!bad) {
      (q * (step + 1)).sum().backward();
      plain.step();
      plain.zero_grad();
    }
    EXPECT_TRUE(torch::equal(p, q)) << step;
    if (step == 0) continue;
    const ParameterState got = scaled.state_of(p);
    const ParameterState want = plain.state_of(q);
    EXPECT_TRUE(torch::equal(got.step, want.step)) << step;
    EXPECT_TRUE(torch::equal(got.exp_avg, want.exp_avg)) << step;
    EXPECT_TRUE(torch::equal(got.exp_avg_sq, want.exp_avg_sq)) << step;
  }
  EXPECT_EQ(scaler.get_scale(), 32);  // halved, doubled, halved
}

TEST(GradScaler, CallsInTheWrongOrderAreErrors) {
  Model model;
  GradScaler scaler;
  const auto before = "before any scale()";
  expect_error<InvalidState>([&] { scaler.unscale_(model.optimizer); }, before);
  expect_error<InvalidState>([&] { scaler.step(model.optimizer); }, before);
  expect_error<InvalidState>([&] { scaler.update(); }, before);
  model.backward(scaler);
  expect_error<InvalidState>([&] { scaler.update(); }, "without a step()");
  scaler.unscale_(model.optimizer);
  expect_error<InvalidState>([&] { scaler.unscale_(model.optimizer); },
                             "was unscaled already");
  scaler.step(model.optimizer);
  expect_error<InvalidState>([&] { scaler.step(model.optimizer); },
                             "stepped already");
  expect_error<InvalidState>([&] { scaler.unscale_(model.optimizer); },
                             "was stepped already");
  scaler.update();
  model.backward(scaler);
  EXPECT_TRUE(scaler.step(model.optimizer));
}

TEST(GradScaler, AStepWithoutAnyGradientIsAnError) {
  Model model;
  GradScaler scaler;
  (void)scaler.scale(torch::ones({}));
  expect_error<InvalidState>([&] { scaler.step(model.optimizer); },
                             "none of whose parameters has a gradient");
  AdamW fused({model.p}, torch::optim::AdamWOptions(0.1));
  expect_error<InvalidState>([&] { scaler.step(fused); },
                             "none of whose parameters has a gradient");
}

TEST(GradScaler, RefusesHalfAndSparseGradients) {
  at::Tensor half = torch::ones({2}, at::kHalf).set_requires_grad(true);
  torch::optim::SGD optimizer({half}, 0.1);
  GradScaler scaler({.init_scale = 2});
  scaler.scale(half.sum()).backward();
  expect_error<InvalidArgument>([&] { scaler.step(optimizer); },
                                "mp_policy.param_dtype");
  at::Tensor p = torch::ones({2}).set_requires_grad(true);
  torch::optim::SGD other({p}, 0.1);
  p.mutable_grad() = torch::ones({2}).to_sparse();
  expect_error<Unsupported>([&] { scaler.step(other); }, "sparse");
}

TEST(GradScaler, OptionsThatCannotBeMeantAreErrors) {
  for (const double bad : {0.0, -1.0, kInfinity, (double)NAN}) {
    EXPECT_THROW(GradScaler({.init_scale = bad}), InvalidArgument);
  }
  for (const double bad : {1.0, 0.5, kInfinity, (double)NAN}) {
    EXPECT_THROW(GradScaler({.growth_factor = bad}), InvalidArgument);
  }
  for (const double bad : {1.0, 0.0, -1.0, (double)NAN}) {
    EXPECT_THROW(GradScaler({.backoff_factor = bad}), InvalidArgument);
  }
  EXPECT_THROW(GradScaler({.growth_interval = 0}), InvalidArgument);
  GradScaler scaler;
  EXPECT_THROW(scaler.set_growth_factor(1), InvalidArgument);
  EXPECT_THROW(scaler.set_backoff_factor(1), InvalidArgument);
  EXPECT_THROW(scaler.set_growth_interval(0), InvalidArgument);
  (void)scaler.scale(torch::ones({}));
  EXPECT_THROW(scaler.update(0.0), InvalidArgument);
  scaler.update(16.0);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScaler, SwitchedOffItStepsAndDoesNothingElse) {
  Model model;
  GradScaler scaler({.scaling = Scaling::off});
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1);
  model.backward(scaler);
  scaler.unscale_(model.optimizer);
  scaler.unscale_(model.optimizer);
  EXPECT_TRUE(scaler.step(model.optimizer));
  scaler.update();
  EXPECT_EQ(model.first(), 0.5);
}

TEST(GradScaler, AnotherScalerGoesOnFromItsState) {
  const GradScalerOptions options{.init_scale = 256, .growth_interval = 3};
  GradScaler scaler(options);
  Model model;
  const auto train = [&](GradScaler& own, int step) {
    model.backward(own);
    if (step == 1) model.p.mutable_grad()[0] = kInfinity;
    own.step(model.optimizer);
    own.update();
  };
  for (int step = 0; step < 4; ++step) train(scaler, step);
  const GradScalerState saved = scaler.state_dict();
  EXPECT_EQ(saved.growth_tracker, 2);
  GradScaler fresh;
  fresh.load_state_dict(saved);
  EXPECT_EQ(fresh.state_dict(), saved);
  GradScaler used;
  train(used, 1);
  used.load_state_dict(saved);
  EXPECT_EQ(used.state_dict(), saved);
  for (GradScaler* own : {&scaler, &fresh, &used}) {
    train(*own, 4);
    EXPECT_EQ(own->get_scale(), 256);
    EXPECT_EQ(own->state_dict(), scaler.state_dict());
  }
  const TemporaryFolder folder;
  State state;
  state.add("scaler", scaler_state(scaler));
  checkpoint::save(folder / "step-5", state);
  GradScaler resumed;
  State target;
  target.add("scaler", scaler_state(resumed));
  checkpoint::load(folder / "step-5", target);
  EXPECT_EQ(resumed.state_dict(), scaler.state_dict());
  GradScalerState bad = saved;
  bad.growth_tracker = -1;
  EXPECT_THROW(fresh.load_state_dict(bad), InvalidArgument);
  EXPECT_THROW(fresh.load_state_dict({}), InvalidArgument);
}

}  // namespace
}  // namespace tessera
