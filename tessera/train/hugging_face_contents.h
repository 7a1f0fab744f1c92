// Whole sets of weights between our Llama-type models and transformers.
#pragma once

#include <string>

#include "tessera/checkpoint/contents.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

/// Parameters of our model, renamed; its tables of positions are left out, for
/// transformers computes them. Values are left out.
/// Errors: InvalidArgument with the names that a Llama-type model has not.
[[nodiscard]] checkpoint::Contents to_hugging_face(
    checkpoint::Contents contents);

/// The other way, with the tables of positions of `model`.
[[nodiscard]] checkpoint::Contents from_hugging_face(
    checkpoint::Contents contents, const ModelConfig& model);

/// Whether a name is one of transformers' for a Llama-type model alone.
[[nodiscard]] bool has_hugging_face_names(const checkpoint::Contents& contents);

/// Adds the tables of positions of `model`, which a Llama-type model has.
[[nodiscard]] checkpoint::Contents with_tables(checkpoint::Contents contents,
                                               const ModelConfig& model);

}  // namespace tessera::train
