#include "tessera/optim/lr_factor.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// From 1 at progress 0 to 0 at progress 1.
double shape(LrDecay decay, double progress) {
  switch (decay) {
    case LrDecay::constant:
      return 1.0;
    case LrDecay::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case LrDecay::linear:
    case LrDecay::wsd:
      break;
  }
  return 1.0 - progress;
}

// The first step below the peak, but for warm-up.
int64_t decay_start(const LrScheduleOptions& options) {
  return options.decay == LrDecay::wsd
             ? options.total_steps - options.decay_steps
             : options.warmup_steps;
}

}  // namespace

void validate(const LrScheduleOptions& options) {
  const bool is_constant = options.decay == LrDecay::constant;
  const bool is_wsd = options.decay == LrDecay::wsd;
  require(options.warmup_steps >= 0 && options.decay_steps >= 0, [&] {
    return str("LrScheduleOptions: warmup_steps is ", options.warmup_steps,
               " and decay_steps ", options.decay_steps, "; give 0 or more.");
  });
  require(is_wsd == (options.decay_steps > 0), [&] {
    return str("LrScheduleOptions: decay_steps is ", options.decay_steps,
               "; give 1 or more for LrDecay::wsd, and 0 for all others.");
  });
  const int64_t least = options.warmup_steps + options.decay_steps;
  require(is_constant || (options.total_steps >= std::max<int64_t>(least, 1)),
          [&] {
            return str("LrScheduleOptions: total_steps is ",
                       options.total_steps, ", but warm-up and decay take ",
                       least, "; give at least as many, and at least 1.");
          });
  require(options.final_factor >= 0 && options.final_factor <= 1, [&] {
    return str("LrScheduleOptions: final_factor is ", options.final_factor,
               "; give a share of the peak from 0 to 1.");
  });
}

double lr_factor(const LrScheduleOptions& options, int64_t step) {
  validate(options);
  require(step >= 0,
          [&] { return str("lr_factor: step is ", step, "; count from 0."); });
  if (step < options.warmup_steps) {
    return static_cast<double>(step + 1) /
           static_cast<double>(options.warmup_steps);
  }
  if (options.decay == LrDecay::constant) return 1.0;
  const int64_t start = decay_start(options);
  if (step >= options.total_steps) return options.final_factor;
  if (step <= start) return 1.0;
  const double progress = static_cast<double>(step - start) /
                          static_cast<double>(options.total_steps - start);
  return options.final_factor +
         (1.0 - options.final_factor) * shape(options.decay, progress);
}

}  // namespace tessera
