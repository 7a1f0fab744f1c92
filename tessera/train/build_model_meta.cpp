#include "tessera/train/build_model_meta.h"

#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>

#include "tessera/module/on_meta.h"
#include "tessera/shard/float8_gather.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/materialize.h"
#include "tessera/train/gpt2.h"
#include "tessera/train/llama.h"

namespace tessera::train {
namespace {

std::optional<c10::ScalarType> mixed(Precision dtype) {
  if (dtype == Precision::float32) return std::nullopt;
  return torch::kBFloat16;
}

ReshardAfterForward reshard_of(const ShardConfig& config) {
  if (config.reshard_ranks > 0) {
    return ReshardAfterForward(static_cast<int>(config.reshard_ranks));
  }
  switch (config.reshard) {
    case ReshardPolicy::always:
      return Reshard::always;
    case ReshardPolicy::never:
      return Reshard::never;
    case ReshardPolicy::automatic:
      break;
  }
  return Reshard::automatic;
}

FullyShardOptions shard_options(const ShardConfig& config,
                                const DeviceMesh& mesh) {
  FullyShardOptions options{.mesh = mesh,
                            .reshard_after_forward = reshard_of(config),
                            .prefetch = config.prefetch,
                            .backward_overlap = config.backward_overlap};
  if (config.param_dtype != Precision::float32) {
    options.mp_policy = {
        .param_dtype = mixed(config.param_dtype),
        .reduce_dtype = config.reduce_dtype == Precision::float32
                            ? torch::kFloat
                            : torch::kBFloat16};
  }
  if (config.gather_copy == CopyForGathers::kept) {
    options.gather_copy = GatherCopy::kept;
  }
  if (config.gather_dtype == GatherDtype::float8) {
    options.gather_transform = float8_gather();
  }
  if (config.offload != Offload::none) {
    options.offload_policy =
        CPUOffloadPolicy{.pin_memory = config.offload == Offload::pinned};
  }
  return options;
}

bool writes_residual(const std::string& name) {
  return name.ends_with("o_proj") || name.ends_with("down_proj") ||
         name.ends_with("c_proj");
}

void draw_module(torch::nn::Module& module, const std::string& name,
                 const DrawOptions& options) {
  if (auto* linear = module.as<torch::nn::Linear>()) {
    const double share =
        writes_residual(name)
            ? 1 / std::sqrt(2.0 * static_cast<double>(options.layers))
            : 1.0;
    torch::nn::init::normal_(linear->weight, 0, options.std * share);
    if (linear->bias.defined()) torch::nn::init::zeros_(linear->bias);
  } else if (auto* embedding = module.as<torch::nn::Embedding>()) {
    torch::nn::init::normal_(embedding->weight, 0, options.std);
  }
}

}  // namespace

LanguageModelPtr build_model_meta(const ModelConfig& config) {
  validate(config);
  return on_meta([&]() -> LanguageModelPtr {
    if (config.architecture == Architecture::gpt2) {
      return std::make_shared<Gpt2Impl>(config);
    }
    return std::make_shared<LlamaImpl>(config);
  });
}

DeviceMesh shard_mesh(const ShardConfig& config, const World& world) {
  const ShardShape shape = shard_shape(config, world.size());
  if (shape.replicas == 1) {
    return init_device_mesh(world, {.shape = {shape.ranks}});
  }
  return init_device_mesh(world, {.shape = {shape.replicas, shape.ranks},
                                  .axes = {"dp_replicate", "dp_shard"}});
}

void shard_model(LanguageModel& model, const ShardConfig& config,
                 const DeviceMesh& mesh) {
  const auto options = shard_options(config, mesh);
  if (config.strategy == Strategy::replicate) {
    replicate(model, options);
    return;
  }
  for (torch::nn::Module* unit : model.units()) fully_shard(*unit, options);
  fully_shard(model, options);
}

void draw_weights(LanguageModel& model, const DrawOptions& options) {
  materialize(model,
              {.seed = options.seed,
               .init = [&](torch::nn::Module& module, const std::string& name) {
                 draw_module(module, name, options);
               }});
}

}  // namespace tessera::train
