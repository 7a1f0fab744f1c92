// Saves a run while it goes on.
//
//   CheckpointSaver saver(config, world, {.text = data.text_id()});
//   saver.save(state, Keep::latest);     // run/checkpoints/step-200
//   saver.before_change();               // before each update
//   saver.finish();
//
// A checkpoint holds, in the files of torch.distributed.checkpoint:
//
//   model.*, optim.*    weights, optimizer
//   trainer.*           RunCounters, the config, which text, how many ranks
//   random.<rank>.*     each rank's random numbers
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/async_saver.h"
#include "tessera/comm/world.h"
#include "tessera/state/state.h"
#include "tessera/train/train_config.h"
#include "tessera/train/train_state.h"
#include "tessera/train/train_step.h"

namespace tessera::train {

enum class Keep {
  latest,  // as config.checkpoint.keep_latest and keep_every say
  best,    // and as the run's best, until a better one comes
};

struct CheckpointSaverOptions {
  std::string text = {};  // which text the samples are of
  std::shared_ptr<checkpoint::Storage> storage = checkpoint::local_storage();
};

class CheckpointSaver {
 public:
  /// config: outlives this.
  CheckpointSaver(const TrainConfig& config, const World& world,
                  CheckpointSaverOptions options);

  /// Writes run/checkpoints/step-N; with config.checkpoint.how = async, goes on
  /// writing when it returns. Waits for the save before it, after which old
  /// checkpoints go. Nothing when this step is saved already. A collective.
  /// Errors: AgreedFailure (cannot_write); that of the save before it, too.
  void save(const TrainState& state, Keep keep);

  /// The weights are about to change: what is issued to the current stream
  /// after this waits for the last save's copy of them. Not collective.
  void before_change() { async_.before_change(); }

  /// Waits for the last save. A collective. Errors: as `save`.
  void finish();

  /// Whether this rank knows that the save under way has failed. All ranks then
  /// call `finish`, which says why. Not collective.
  [[nodiscard]] SaveHealth health() const {
    return async_.failed() ? SaveHealth::failed : SaveHealth::fine;
  }

  /// The path of the last save; empty before it.
  [[nodiscard]] const std::string& last() const { return last_; }

 private:
  struct Pending {
    std::string path;
    Keep keep;
  };

  [[nodiscard]] State state_to_save(const TrainState& state) const;
  void begin(const TrainState& state);
  void settle();

  const TrainConfig& config_;
  World world_;
  CheckpointSaverOptions options_;
  checkpoint::SaveOptions save_options_;
  checkpoint::AsyncSaver async_;
  std::optional<Pending> pending_;
  std::string last_;
};

}  // namespace tessera::train
