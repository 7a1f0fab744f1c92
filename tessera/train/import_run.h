// A run folder of weights that were trained elsewhere.
//
//   run/config.toml, run/tokenizer.model   what tessera train would have left
//   run/model.safetensors                  for tessera generate and eval
//   run/checkpoints/step-0                 for tessera train --resume auto
#pragma once

#include "tessera/checkpoint/contents.h"
#include "tessera/train/token_format.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// Makes config.output.folder that of a run of config.model that has not
/// stepped yet. `weights` have our names; tables of positions are made where
/// they are not among them. One tensor is in memory at a time.
/// Returns: how many tensors were written.
/// Errors: InvalidArgument for weights that are missing, unknown, or of another
///         size than config.model says; Failure (cannot_write) for a folder
///         that holds a run already, or cannot be written.
size_t import_run(const TrainConfig& config, checkpoint::Contents weights,
                  const Tokenizer& tokenizer,
                  const checkpoint::Progress& progress);

}  // namespace tessera::train
