#include "tessera/train/build_model_meta.h"

#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <string>

#include "tessera/module/on_meta.h"
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

Reshard reshard_of(ReshardPolicy policy) {
  switch (policy) {
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
  FullyShardOptions options{
      .mesh = mesh, .reshard_after_forward = reshard_of(config.reshard)};
  if (config.param_dtype != Precision::float32) {
    options.mp_policy = {
        .param_dtype = mixed(config.param_dtype),
        .reduce_dtype = config.reduce_dtype == Precision::float32
                            ? torch::kFloat
                            : torch::kBFloat16};
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
