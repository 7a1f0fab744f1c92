// Where a run saves itself and comes back.
//
// The loop calls `load` once, before its first step, and `save` every so many
// steps and when it ends. Without hooks a run cannot be resumed; it still
// leaves its weights (tessera/train/run_folder.h).
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>

#include "tessera/train/language_model.h"

namespace tessera::train {

/// What a run is made of. The data's position and the schedule are functions of
/// the step.
struct TrainState {
  LanguageModel& model;
  torch::optim::Optimizer& optimizer;
  int64_t step = 0;  // updates made
};

struct CheckpointHooks {
  /// Brings back the newest state, `step` too; leaves all as it is when there
  /// is none.
  std::function<void(TrainState&)> load = {};
  std::function<void(const TrainState&)> save = {};
};

}  // namespace tessera::train
