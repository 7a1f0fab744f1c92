// Finds the checkpoint that a run goes on from, and brings it back.
//
//   auto point = find_checkpoint("auto", config, world);
//   if (point) {
//     for (auto& note : check_checkpoint(*point, config, text)) say(note);
//     checkpoint_load(*point, state, {.seed = config.train.seed}, world);
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/train/train_config.h"
#include "tessera/train/train_state.h"

namespace tessera::train {

/// A checkpoint of a run, opened but not loaded.
struct ResumePoint {
  std::string path;
  uint64_t save = 0;  // its fingerprint
  RunCounters counters;
  int64_t world_size = 1;  // of the run that saved it; 0: none, import_run
  std::string config;      // TOML
  std::string text;        // which text the samples are of
};

/// What `resume` means: "never"; "auto", the newest complete checkpoint of
/// config.output.folder, none if there is none; or a path: a checkpoint, or a
/// run folder, whose newest it is. A collective; the same on every rank.
/// Errors: AgreedFailure (cannot_resume) for a path where there is none, and
///         for a checkpoint that holds no run.
[[nodiscard]] std::optional<ResumePoint> find_checkpoint(
    const std::string& resume, const TrainConfig& config, const World& world);

/// Whether the run that `config` describes can go on from there.
/// Returns: sentences about what is different, for people.
/// Errors:  Failure (cannot_resume) that names the keys, for another model.
[[nodiscard]] std::vector<std::string> check_checkpoint(
    const ResumePoint& point, const TrainConfig& config,
    const std::string& text, int world_size);

/// Brings weights, optimizer, counters and, at as many ranks, random numbers
/// back; at another number each rank begins a stream of `seed` and the step.
/// The options of the optimizer stay those of the config. A collective.
/// Errors: AgreedFailure (cannot_resume), naming path and reason.
void checkpoint_load(const ResumePoint& point, TrainState& state, uint64_t seed,
                     const World& world);

}  // namespace tessera::train
