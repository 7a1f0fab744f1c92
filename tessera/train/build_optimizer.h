// The optimizer of a training run.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

#include "tessera/train/language_model.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// AdamW over two parameter groups: matrices with weight decay, vectors (norms,
/// biases) without. Make it after sharding: shards keep their dims.
[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> build_optimizer(
    LanguageModel& model, const OptimizerConfig& config);

/// From now on each backward that reduces gradients is a step of the optimizer,
/// which must outlive that. Errors: InvalidArgument for another than AdamW.
void let_step_in_backward(LanguageModel& model,
                          torch::optim::Optimizer& optimizer);

}  // namespace tessera::train
