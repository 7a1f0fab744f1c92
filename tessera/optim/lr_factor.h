// The share of its peak that the learning rate has at a step.
//
//   1 |    /'''''''\.            warm-up, then constant, linear, cosine or
//     |   /          \.          wsd (warm-up, stable, decay; drawn)
//     |  /             \.
//     | /                '  final_factor
//     '-+--+-------+-----+--
//       0  warmup  |     total     step
//                  total - decay
//
// A pure function of the step, so a resumed run has nothing to restore.
#pragma once

#include <cstdint>

namespace tessera {

enum class LrDecay { constant, linear, cosine, wsd };

struct LrScheduleOptions {
  LrDecay decay = LrDecay::cosine;
  int64_t total_steps = 0;    // not used by `constant`
  int64_t warmup_steps = 0;   // the last of them has the peak
  int64_t decay_steps = 0;    // of `wsd`, at the end; straight down
  double final_factor = 0.0;  // at total_steps and after; not for `constant`
};

/// Errors: InvalidArgument for counts below 0, a total that warm-up and decay
///         do not fit in, a final_factor outside 0 to 1, `wsd` without
///         decay_steps or decay_steps without `wsd`.
void validate(const LrScheduleOptions& options);

/// The factor at `step`, counted from 0 for the first update.
///
/// Above 0 for all steps before total_steps: the first step of a warm-up of n
/// has 1/n, and final_factor is first reached at total_steps.
/// Errors: InvalidArgument for a negative step, and those of `validate`.
[[nodiscard]] double lr_factor(const LrScheduleOptions& options, int64_t step);

}  // namespace tessera
