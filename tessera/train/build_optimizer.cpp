#include "tessera/train/build_optimizer.h"

#include <torch/optim/adamw.h>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::train {
namespace {

torch::optim::AdamWOptions adamw_options(const OptimizerConfig& config,
                                         double weight_decay) {
  return torch::optim::AdamWOptions(config.lr)
      .betas({config.beta1, config.beta2})
      .eps(config.eps)
      .weight_decay(weight_decay);
}

std::vector<torch::optim::OptimizerParamGroup> parameter_groups(
    LanguageModel& model, const OptimizerConfig& config) {
  std::vector<at::Tensor> matrices, vectors;
  for (const at::Tensor& parameter : model.parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const auto add = [&](std::vector<at::Tensor> parameters, double decay) {
    if (parameters.empty()) return;
    groups.emplace_back(std::move(parameters),
                        std::make_unique<torch::optim::AdamWOptions>(
                            adamw_options(config, decay)));
  };
  add(std::move(matrices), config.weight_decay);
  add(std::move(vectors), 0);
  return groups;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> build_optimizer(
    LanguageModel& model, const OptimizerConfig& config) {
  const auto groups = parameter_groups(model, config);
  const auto defaults = adamw_options(config, config.weight_decay);
  if (config.kind == OptimizerKind::torch_adamw) {
    return std::make_unique<torch::optim::AdamW>(groups, defaults);
  }
  return std::make_unique<AdamW>(groups, defaults);
}

void let_step_in_backward(LanguageModel& model,
                          torch::optim::Optimizer& optimizer) {
  auto* const adamw = dynamic_cast<AdamW*>(&optimizer);
  require<InvalidArgument>(adamw != nullptr, [] {
    return str(
        "let_step_in_backward: got another optimizer than AdamW, which "
        "steps all parameters at once.");
  });
  step_in_backward(model, [adamw](const std::vector<at::Tensor>& shards) {
    adamw->step_only(shards);
  });
}

}  // namespace tessera::train
