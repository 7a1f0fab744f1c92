#include "tessera/optim/lr_factor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// All schedules of a few steps: every decay, warm-up, decay length, final
// value.
std::vector<LrScheduleOptions> small_schedules() {
  std::vector<LrScheduleOptions> schedules;
  for (LrDecay decay :
       {LrDecay::constant, LrDecay::linear, LrDecay::cosine, LrDecay::wsd}) {
    for (int64_t total = 1; total <= 9; ++total) {
      for (int64_t warmup = 0; warmup <= total; ++warmup) {
        for (int64_t length = 0; length + warmup <= total; ++length) {
          if ((length > 0) != (decay == LrDecay::wsd)) continue;
          for (double final_factor : {0.0, 0.1, 1.0}) {
            schedules.push_back({.decay = decay,
                                 .total_steps = total,
                                 .warmup_steps = warmup,
                                 .decay_steps = length,
                                 .final_factor = final_factor});
          }
        }
      }
    }
  }
  return schedules;
}

TEST(LrFactor, IsAboveZeroAndAtMostOneBeforeTheEnd) {
  for (const auto& options : small_schedules()) {
    for (int64_t step = 0; step < options.total_steps; ++step) {
      EXPECT_GT(lr_factor(options, step), 0.0);
      EXPECT_LE(lr_factor(options, step), 1.0);
    }
  }
}

TEST(LrFactor, RisesThroughTheWarmUpAndNeverAfter) {
  for (const auto& options : small_schedules()) {
    for (int64_t step = 1; step < options.total_steps + 2; ++step) {
      const double change =
          lr_factor(options, step) - lr_factor(options, step - 1);
      if (step < options.warmup_steps) {
        EXPECT_GT(change, 0.0);
      } else {
        EXPECT_LE(change, 0.0);
      }
    }
  }
}

TEST(LrFactor, IsAtThePeakInTheLastStepOfTheWarmUp) {
  for (const auto& options : small_schedules()) {
    if (options.warmup_steps == 0) continue;
    EXPECT_EQ(lr_factor(options, options.warmup_steps - 1), 1.0);
    EXPECT_EQ(lr_factor(options, 0),
              1.0 / static_cast<double>(options.warmup_steps));
  }
}

TEST(LrFactor, EndsAtTheFinalFactorAndStaysThere) {
  for (const auto& options : small_schedules()) {
    const double end =
        options.decay == LrDecay::constant ? 1.0 : options.final_factor;
    const int64_t last = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(lr_factor(options, options.total_steps), end);
    EXPECT_EQ(lr_factor(options, last), end);
  }
}

TEST(LrFactor, IsConstantWithoutATotal) {
  const LrScheduleOptions options{.decay = LrDecay::constant,
                                  .warmup_steps = 4};
  EXPECT_EQ(lr_factor(options, 1), 0.5);
  EXPECT_EQ(lr_factor(options, 4), 1.0);
  EXPECT_EQ(lr_factor(options, 1'000'000), 1.0);
}

TEST(LrFactor, FallsInAStraightLine) {
  const LrScheduleOptions options{.decay = LrDecay::linear,
                                  .total_steps = 12,
                                  .warmup_steps = 2,
                                  .final_factor = 0.2};
  EXPECT_DOUBLE_EQ(lr_factor(options, 2), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(options, 7), 0.6);
  EXPECT_DOUBLE_EQ(lr_factor(options, 11), 0.28);
}

TEST(LrFactor, FallsAlongHalfACosine) {
  const LrScheduleOptions options{
      .total_steps = 12, .warmup_steps = 0, .final_factor = 0.1};
  EXPECT_DOUBLE_EQ(lr_factor(options, 0), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(options, 6), 0.55);
  EXPECT_DOUBLE_EQ(lr_factor(options, 4), 0.1 + 0.9 * 0.75);
  EXPECT_DOUBLE_EQ(lr_factor(options, 8), 0.1 + 0.9 * 0.25);
}

TEST(LrFactor, StaysStableUntilTheDecayOfWsd) {
  const LrScheduleOptions options{.decay = LrDecay::wsd,
                                  .total_steps = 100,
                                  .warmup_steps = 10,
                                  .decay_steps = 20};
  EXPECT_EQ(lr_factor(options, 10), 1.0);
  EXPECT_EQ(lr_factor(options, 80), 1.0);
  EXPECT_DOUBLE_EQ(lr_factor(options, 81), 0.95);
  EXPECT_DOUBLE_EQ(lr_factor(options, 90), 0.5);
}

TEST(LrFactor, RefusesOptionsThatCannotBeHonoured) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<LrScheduleOptions> wrong = {
      {},
      {.total_steps = -1},
      {.total_steps = 5, .warmup_steps = 6},
      {.total_steps = 5, .warmup_steps = -1},
      {.total_steps = 5, .decay_steps = 1},
      {.total_steps = 5, .final_factor = -0.1},
      {.total_steps = 5, .final_factor = 1.1},
      {.total_steps = 5, .final_factor = nan},
      {.decay = LrDecay::constant, .decay_steps = 1},
      {.decay = LrDecay::wsd, .total_steps = 5},
      {.decay = LrDecay::wsd, .total_steps = 5, .decay_steps = -1},
      {.decay = LrDecay::wsd,
       .total_steps = 5,
       .warmup_steps = 3,
       .decay_steps = 3},
  };
  for (const auto& options : wrong) {
    EXPECT_THROW(validate(options), InvalidArgument);
    EXPECT_THROW((void)lr_factor(options, 0), InvalidArgument);
  }
  for (const auto& options : small_schedules()) {
    EXPECT_NO_THROW(validate(options));
  }
}

TEST(LrFactor, RefusesANegativeStep) {
  EXPECT_THROW((void)lr_factor({.total_steps = 5}, -1), InvalidArgument);
}

}  // namespace
}  // namespace tessera
