// A whole training run, from a configuration to a folder with weights.
//
//   World world = init_distributed();
//   TrainOutcome outcome = train(config, world);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/storage.h"
#include "tessera/comm/world.h"
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
  int64_t steps = 0;        // of the whole run, before it was resumed too
  int64_t num_skipped = 0;  // of these: loss not finite, no update
  std::optional<double> held_out_loss = {};  // of the whole text, at the end
  std::string checkpoint = {};               // the last one, if there is one
};

struct TrainCalls {
  // Asked between steps: shall the run end now?
  std::function<bool()> stop_requested = {};
  // Where the run begins: "never": anew; "auto": at the newest checkpoint of
  // config.output.folder, if there is one; or the path of one.
  std::string resume = "never";
  // Where checkpoints are written.
  std::shared_ptr<checkpoint::Storage> storage = checkpoint::local_storage();
};

/// Builds the model, trains it, and leaves checkpoints, weights, metrics and a
/// curve in config.output.folder, also when it was stopped. Each rank draws
/// from the process's random generator, which is seeded. A collective.
/// Errors: Failure, on all ranks alike, for data that is missing, damaged, too
///         short for the model, or has tokens outside the vocabulary, and for a
///         batch that does not divide, a checkpoint that cannot be gone on
///         from or written; on the rank that has it, for a file that
///         cannot be written; CommError when another rank failed.
[[nodiscard]] TrainOutcome train(const TrainConfig& config, const World& world,
                                 const TrainCalls& calls = {});

}  // namespace tessera::train
