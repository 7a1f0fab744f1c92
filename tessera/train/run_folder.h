// The folder that a run leaves.
//
//   run/config.toml         all that the run was told
//   run/model.safetensors   the weights, in several files when they are large
//   run/metrics.jsonl, loss.svg, events.out.tfevents.*
//
// `tessera generate` and `tessera eval` read the first two.
#pragma once

#include <string>

#include "tessera/mesh/device_mesh.h"
#include "tessera/train/language_model.h"

namespace tessera::train {

/// Writes the whole weights; rank 0 alone writes. Collective.
/// Memory: the whole model, on every rank.
/// Errors: Failure (cannot_write).
void save_weights(LanguageModel& model, const DeviceMesh& mesh,
                  const std::string& folder);

/// Sets the weights of a model that has memory, sharded or plain. Every rank
/// reads the files. Collective.
/// Errors: Failure (missing_weights) for a folder without weights, or with
///         weights of other names or sizes.
void load_weights(LanguageModel& model, const std::string& folder);

}  // namespace tessera::train
