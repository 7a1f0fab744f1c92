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

}  // namespace tessera::train
