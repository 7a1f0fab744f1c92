// Sets the learning rates of an optimizer for a step:
//
//   LrSchedule schedule(optimizer, {.total_steps = 1000, .warmup_steps = 50},
//                       {3e-4});
//   for (int64_t step = 0; step < 1000; ++step) {
//     schedule.apply(step);
//     ...
//     optimizer.step();
//   }
//
// The peaks are given, not read from the optimizer: a loaded optimizer carries
// the rate of the step at which it was saved. So it does not matter whether a
// checkpoint is loaded before or after the schedule is made.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/optim/lr_factor.h"

namespace tessera {

class LrSchedule {
 public:
  /// optimizer: any torch::optim optimizer; must outlive the schedule.
  /// peak_lrs:  one for all parameter groups, or one for each.
  /// Errors:    InvalidArgument for no or a negative peak, and those of
  ///            `validate`.
  LrSchedule(torch::optim::Optimizer& optimizer,
             const LrScheduleOptions& options, std::vector<double> peak_lrs);

  /// Sets the rates of the update number `step`, counted from 0.
  /// Errors: InvalidArgument for a negative step, InvalidState when the
  ///         optimizer has other than the given number of parameter groups.
  void apply(int64_t step);

  /// The rate of parameter group `group` at `step`.
  /// Errors: InvalidArgument for a group without a peak or a negative step.
  [[nodiscard]] double lr(int64_t step, size_t group = 0) const;

 private:
  torch::optim::Optimizer* optimizer_;
  LrScheduleOptions options_;
  std::vector<double> peak_lrs_;
};

}  // namespace tessera
