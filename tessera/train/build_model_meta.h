// From a configuration to a model that trains.
//
//   auto model = build_model_meta(config.model);            // no memory yet
//   DeviceMesh mesh = shard_mesh(config.shard, world);
//   shard_model(*model, config.shard, mesh);                // still none
//   draw_weights(*model, {.seed = 1, .std = 0.02});         // this rank's part
#pragma once

#include <cstdint>

#include "tessera/mesh/device_mesh.h"
#include "tessera/train/language_model.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// The model on the meta device. Errors: InvalidArgument from `validate`.
[[nodiscard]] LanguageModelPtr build_model_meta(const ModelConfig& config);

/// All ranks: one axis, or with replicas two, "dp_replicate" and "dp_shard",
/// the ranks of a replica being neighbours. Errors: those of `shard_shape`.
[[nodiscard]] DeviceMesh shard_mesh(const ShardConfig& config,
                                    const World& world);

/// Makes each of the model's units one, then the root.
void shard_model(LanguageModel& model, const ShardConfig& config,
                 const DeviceMesh& mesh);

struct DrawOptions {
  uint64_t seed = 1;
  double std = 0.02;
  int64_t layers = 1;
};

/// The first weights, the same at any number of ranks: matrices normal with
/// deviation `std`, those that write to the residual stream (o_proj, down_proj,
/// c_proj) by std / sqrt(2 layers); biases 0, norms 1.
void draw_weights(LanguageModel& model, const DrawOptions& options);

}  // namespace tessera::train
