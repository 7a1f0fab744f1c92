// Our Llama-type models as the transformers library knows them. Torch-free.
//
//   embed_tokens.weight          model.embed_tokens.weight
//   layers.0.q_proj.weight       model.layers.0.self_attn.q_proj.weight
//   layers.0.up_proj.weight      model.layers.0.mlp.up_proj.weight
//   norm.weight                  model.norm.weight
//   lm_head.weight               lm_head.weight
//
// Both turn queries and keys by halves, so no rows change places.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tessera/train/model_presets.h"

namespace tessera::train {

/// The name of one of our parameters over there, or none.
[[nodiscard]] std::optional<std::string> to_hugging_face(std::string_view name);

/// The other way.
[[nodiscard]] std::optional<std::string> from_hugging_face(
    std::string_view name);

/// config.json for `model`. `dtype`: "float32", "bfloat16", ...
/// Errors: Unsupported for another architecture than Llama.
[[nodiscard]] std::string write_hugging_face_config(const ModelConfig& model,
                                                    std::string_view dtype);

/// The model that a config.json describes. `path` is for messages.
/// Errors: CheckpointError for JSON that is none or lacks a number; Unsupported
///         for what our models do not do: other types, scaled positions,
///         biases, heads of another width.
[[nodiscard]] ModelConfig read_hugging_face_config(std::string_view json,
                                                   const std::string& path);

}  // namespace tessera::train
