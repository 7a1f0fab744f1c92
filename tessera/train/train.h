// A whole training run, from a configuration to a folder with weights.
//
//   World world = init_distributed();
//   TrainOutcome outcome = train(config, world);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tessera/comm/world.h"
#include "tessera/train/checkpoint_hooks.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

enum class Ending {
  finished,   // all steps
  stopped,    // because some rank was asked to
  nonfinite,  // by config.train.nonfinite = "stop"
};

/// The same on every rank.
struct TrainOutcome {
  Ending ending = Ending::finished;
  int64_t steps = 0;
  int64_t num_skipped = 0;  // of these: loss not finite, no update
  std::optional<double> held_out_loss = {};  // of the whole text, at the end
};

struct TrainCalls {
  // Asked between steps: shall the run end now?
  std::function<bool()> stop_requested = {};
  CheckpointHooks checkpoint = {};
};

/// Builds the model, trains it, and leaves weights, metrics and a curve in
/// config.output.folder, also when it was stopped. A collective.
/// Errors: Failure, on all ranks alike, for data that is missing, damaged, too
///         short for the model, or has tokens outside the vocabulary, and for a
///         batch that does not divide; on the rank that has it, for a file that
///         cannot be written; CommError when another rank failed.
[[nodiscard]] TrainOutcome train(const TrainConfig& config, const World& world,
                                 const TrainCalls& calls = {});

}  // namespace tessera::train
