// The folder that a run leaves.
//
//   run/config.toml         all that the run was told
//   run/model.safetensors   the weights, in several files when they are large
//   run/tokenizer.model     what made the tokens; none where they are bytes
//   run/metrics.jsonl, loss.svg, events.out.tfevents.*
//
// `tessera generate` and `tessera eval` read the first three.
#pragma once

#include <string>

#include "tessera/mesh/device_mesh.h"
#include "tessera/train/language_model.h"
#include "tessera/train/token_format.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// Writes the whole weights; rank 0 alone writes. Collective.
/// Memory: the whole model, on every rank.
/// Errors: Failure (cannot_write).
void save_weights(LanguageModel& model, const DeviceMesh& mesh,
                  const std::string& folder);

/// The config that `train` left there, and the tokenizer.
/// Errors: Failure (missing_weights) for a folder without config.toml.
[[nodiscard]] TrainConfig load_config(const std::string& folder);
[[nodiscard]] Tokenizer load_tokenizer(const std::string& folder);

/// Makes the folder, with config.toml and the tokenizer.
/// Errors: Failure (cannot_write).
void make_run_folder(const TrainConfig& config, const Tokenizer& tokenizer);

/// A model of `config` over the ranks of `world`, with the weights of `folder`.
/// It does not drop out. Collective. Errors: as load_weights.
[[nodiscard]] LanguageModelPtr load_model(const TrainConfig& config,
                                          const World& world,
                                          const std::string& folder);

/// Sets the weights of a model that has memory, sharded or plain. Every rank
/// reads the files. Collective.
/// Errors: Failure (missing_weights) for a folder without weights, or with
///         weights of other names or sizes.
void load_weights(LanguageModel& model, const std::string& folder);

}  // namespace tessera::train
