// What captured steps need of the units that they read. On CPU a replay is what
// the test writes below the version counters, as a device would.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/shard/find_units.h"
#include "tessera/shard/step_units.h"
#include "tests/support/agreement.h"

namespace tessera::test {
namespace {

/// A model and a module outside of it, both sharded and with kept copies.
struct TwoModules {
  nn::Linear model{5, 5}, teacher{5, 5};
  StepUnits units;

  TwoModules(const World& world, Reshard reshard) {
    for (nn::Linear module : {model, teacher}) {
      fully_shard(*module, {.mesh = init_device_mesh(world),
                            .reshard_after_forward = reshard,
                            .mp_policy = {.param_dtype = torch::kBFloat16},
                            .gather_copy = GatherCopy::kept,
                            .start_check = StartCheck::off});
    }
  }

  void read_both() {
    const torch::NoGradGuard no_grad;
    (void)model(torch::ones({1, 5}));
    (void)teacher(torch::ones({1, 5}));
  }

  void run(StepRun run, const std::function<void()>& body) {
    const StepUnits::Recording recording(units, run);
    body();
  }

  void capture(const std::function<void()>& body) {
    units.before_capture(*model);
    run(StepRun::capture, body);
    units.after_capture();
  }
};

Unit& unit_of(nn::Linear module) { return *units_below(*module).front(); }

FlatMaster& master_of(nn::Linear module) {
  return *unit_of(module).groups().front()->master();
}

int64_t version_of(nn::Linear module) {
  return module->parameters()[0]._version();
}

void scale(nn::Linear module, double factor) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& shard : module->parameters()) shard.mul_(factor);
}

TEST(StepUnits, AWriteBetweenReplaysReachesTheCopyOfAModuleOutsideTheModel) {
  on_ranks(2, [](const World& world) {
    TwoModules two(world, Reshard::always);
    two.capture([&] { two.read_both(); });
    FlatMaster& master = master_of(two.teacher);
    scale(two.teacher, 2);
    EXPECT_FALSE(master.copy_is_current());
    two.units.before_replay();
    EXPECT_TRUE(master.copy_is_current());
    EXPECT_TRUE(master.copy.equal(master.data.to(torch::kBFloat16)));
  });
}

TEST(StepUnits, WhatTheStepsBeforeLeftGatheredIsFreedBeforeTheCapture) {
  on_ranks(2, [](const World& world) {
    TwoModules two(world, Reshard::never);
    two.run(StepRun::eager, [&] { two.read_both(); });
    EXPECT_TRUE(unit_of(two.model).gathered());
    EXPECT_TRUE(unit_of(two.teacher).gathered());
    two.units.before_capture(*two.model);
    EXPECT_FALSE(unit_of(two.model).gathered());
    EXPECT_FALSE(unit_of(two.teacher).gathered());
    two.run(StepRun::capture, [&] { two.read_both(); });
    two.units.reshard();
    EXPECT_FALSE(unit_of(two.teacher).gathered());
  });
}

TEST(StepUnits, ACaptureMayNotReadWhatWasGatheredBeforeIt) {
  on_ranks(2, [](const World& world) {
    TwoModules two(world, Reshard::never);
    two.read_both();
    unit_of(two.teacher).set_name("teacher");
    const std::string message =
        message_of([&] { two.capture([&] { two.read_both(); }); });
    EXPECT_TRUE(says(message, "the captured step reads unit 'teacher'"));
    EXPECT_TRUE(says(message, "Call reshard() on its module before"));
  });
}

TEST(StepUnits, WhatAReplayWritesIsMarkedAsChangedAndNothingElse) {
  on_ranks(2, [](const World& world) {
    TwoModules two(world, Reshard::always);
    nn::Linear written(5, 5);
    fully_shard(*written, {.mesh = init_device_mesh(world),
                           .start_check = StartCheck::off});
    const auto body = [&] {
      two.read_both();
      const torch::NoGradGuard no_grad;
      (void)written(torch::ones({1, 5}));
      scale(written, 0.5);
    };
    two.run(StepRun::eager, body);
    two.capture(body);
    const int64_t of_model = version_of(two.model);
    const int64_t of_teacher = version_of(two.teacher);
    const int64_t of_written = version_of(written);
    two.units.before_replay();
    two.units.after_replay();
    EXPECT_GT(version_of(two.model), of_model);
    EXPECT_EQ(version_of(two.teacher), of_teacher);
    EXPECT_GT(version_of(written), of_written);
    EXPECT_TRUE(master_of(two.model).copy_is_current())
        << "the captured step left it current";
  });
}

}  // namespace
}  // namespace tessera::test
