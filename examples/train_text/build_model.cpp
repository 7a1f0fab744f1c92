#include "examples/train_text/build_model.h"

#include <torch/torch.h>

#include "tessera/module/on_meta.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/materialize.h"

namespace train_text {

Llama plain_model(const Options& options) {
  torch::manual_seed(options.seed);
  return Llama(options.model);
}

Llama sharded_model(const Options& options, const tessera::DeviceMesh& mesh) {
  auto model = tessera::on_meta([&] { return Llama(options.model); });
  for (const auto& layer : *model->layers) {
    tessera::fully_shard(*layer, {.mesh = mesh});  // bottom-up: the blocks
  }
  tessera::fully_shard(*model, {.mesh = mesh});  // then the rest, as the root
  tessera::materialize(*model, {.seed = options.seed});
  return model;
}

}  // namespace train_text
