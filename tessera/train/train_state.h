// What a run is made of: what is saved, and brought back.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>

#include "tessera/train/language_model.h"

namespace tessera::train {

/// How far a run has come. The same on every rank.
struct RunCounters {
  int64_t step = 0;         // updates made, skipped ones among them
  int64_t samples = 0;      // windows taken, of all ranks and epochs
  int64_t tokens = 0;       // that had a target
  int64_t num_skipped = 0;  // steps whose loss was not finite
  std::optional<double> best_held_out = {};  // the lowest held-out loss

  bool operator==(const RunCounters&) const = default;
};

/// The schedule is a function of the step, the place in the data of the
/// samples.
struct TrainState {
  LanguageModel& model;
  torch::optim::Optimizer& optimizer;
  RunCounters counters = {};
};

}  // namespace tessera::train
