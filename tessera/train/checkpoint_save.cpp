#include "tessera/train/checkpoint_save.h"

#include <functional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/agree_on_failure.h"
#include "tessera/train/checkpoint_folder.h"
#include "tessera/train/random_state.h"

namespace tessera::train {
namespace {

Value trainer_values(const TrainState& state, const TrainConfig& config,
                     const std::string& text, int world_size) {
  const RunCounters& counters = state.counters;
  return Value::dict(
      {{"step", counters.step},
       {"samples", counters.samples},
       {"tokens", counters.tokens},
       {"num_skipped", counters.num_skipped},
       {"best_held_out",
        counters.best_held_out ? Value(*counters.best_held_out) : Value()},
       {"world_size", world_size},
       {"config", config.toml},
       {"text", text}});
}

std::shared_ptr<Stateful> saved_only(Value value) {
  return std::make_shared<ValueState>(
      [value = std::move(value)] { return value; }, [](const Value&) {});
}

/// After a save is complete, on rank 0.
void tidy(const std::string& path, Keep keep, const TrainConfig& config) {
  const std::string& run = config.output.folder;
  try {
    if (keep == Keep::best) keep_as_best(run, path);
    (void)checkpoint::prune(checkpoint_folder(run),
                            {.keep_latest = config.checkpoint.keep_latest,
                             .keep_every = config.checkpoint.keep_every});
  } catch (const CheckpointError& error) {
    throw Failure(ExitCode::cannot_write, error.what());
  }
}

/// A CheckpointError is the same on every rank.
void or_cannot_write(const std::function<void()>& body) {
  try {
    body();
  } catch (const CheckpointError& error) {
    throw AgreedFailure(ExitCode::cannot_write,
                        str("the checkpoint was not saved; those before it are "
                            "whole. ",
                            error.what()));
  }
}

}  // namespace

CheckpointSaver::CheckpointSaver(const TrainConfig& config, const World& world,
                                 CheckpointSaverOptions options)
    : config_(config),
      world_(world),
      options_(std::move(options)),
      save_options_{.world = world, .storage = options_.storage},
      async_(save_options_, checkpoint::Staging::beside_steps) {}

void CheckpointSaver::save(const TrainState& state, Keep keep) {
  const std::string path =
      checkpoint_path(config_.output.folder, state.counters.step);
  if (path == last_) return;
  or_cannot_write([&] {
    settle();
    pending_ = Pending{path, keep};
    last_ = path;
    begin(state);
  });
}

void CheckpointSaver::finish() {
  or_cannot_write([&] { settle(); });
}

State CheckpointSaver::state_to_save(const TrainState& state) const {
  State all = state_of(state.model, state.optimizer);
  all.add("trainer", saved_only(trainer_values(state, config_, options_.text,
                                               world_.size())));
  all.add(str("random.", world_.rank()),
          saved_only(random_state(world_.device())));
  return all;
}

void CheckpointSaver::begin(const TrainState& state) {
  const State all = state_to_save(state);
  if (config_.checkpoint.how == SaveHow::async) {
    async_.save(pending_->path, all);
  } else {
    checkpoint::save(pending_->path, all, save_options_);
    settle();
  }
}

/// The save under way is complete when this returns.
void CheckpointSaver::settle() {
  if (!pending_) return;
  const Pending done = *std::exchange(pending_, std::nullopt);
  async_.wait();
  agree_on_failure(world_, [&] {
    if (world_.rank() == 0) tidy(done.path, done.keep, config_);
  });
}

}  // namespace tessera::train
