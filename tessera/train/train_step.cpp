#include "tessera/train/train_step.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "tessera/optim/clip_grad_norm.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/train/sum_over_ranks.h"

namespace tessera::train {
namespace {

void tell_before_change(const StepOptions& options) {
  if (options.before_change) options.before_change();
}

/// The sum of this rank's token losses; gradients are left in the parameters.
at::Tensor run_backwards(LanguageModel& model,
                         const std::vector<Batch>& micro_batches,
                         const at::Tensor& scale, c10::Device device,
                         const StepOptions& options) {
  auto sum = torch::zeros({}, scale.options());
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const bool last = i + 1 == micro_batches.size();
    if (micro_batches.size() > 1) {
      set_requires_gradient_sync(model, last ? Sync::on : Sync::off);
    }
    const auto loss = model.sum_of_losses(micro_batches[i].input.to(device),
                                          micro_batches[i].target.to(device));
    if (last && options.optimizer_step == OptimizerStep::in_backward) {
      tell_before_change(options);
    }
    (loss * scale.to(loss.dtype())).backward();
    sum += loss.detach();
  }
  return sum;
}

at::Tensor norm_of(const LanguageModel& model, const StepOptions& options) {
  return options.optimizer_step == OptimizerStep::in_backward
             ? torch::zeros({})
             : get_total_norm(model.parameters());
}

/// As get_total_norm gave it.
at::Tensor norm_in(const at::Tensor& computed) {
  return computed[4].to(torch::kFloat);
}

/// Optimizers derived from AdamW have a `step` of their own.
AdamW* as_adamw(torch::optim::Optimizer& optimizer) {
  return typeid(optimizer) == typeid(AdamW) ? static_cast<AdamW*>(&optimizer)
                                            : nullptr;
}

void clip_and_step(LanguageModel& model, torch::optim::Optimizer& optimizer,
                   const at::Tensor& computed, const StepOptions& options) {
  if (AdamW* const adamw = as_adamw(optimizer)) {
    step_clipped(*adamw, computed, options);
    return;
  }
  if (options.max_norm > 0) {
    clip_grads_with_norm_(model.parameters(), options.max_norm,
                          norm_in(computed));
  }
  optimizer.step();
}

}  // namespace

StepOptions step_options(const TrainConfig& config) {
  return {.max_norm = config.train.max_norm,
          .optimizer_step = config.train.step_in_backward
                                ? OptimizerStep::in_backward
                                : OptimizerStep::after_backward};
}

at::Tensor numbers_of_rank(const std::vector<Batch>& micro_batches,
                           const StepOptions& options) {
  auto tokens = torch::zeros({}, torch::kDouble);
  for (const Batch& batch : micro_batches) {
    tokens += batch.target.ne(kNoTarget).sum().to(tokens.device());
  }
  const auto flag = [](bool set) {
    return torch::full({}, set ? 1.0 : 0.0, torch::kDouble);
  };
  return torch::stack({tokens, flag(options.wish == Wish::stop),
                       flag(options.save == SaveHealth::failed)});
}

at::Tensor compute_gradients(LanguageModel& model,
                             const std::vector<Batch>& micro_batches,
                             const at::Tensor& numbers, const DeviceMesh& mesh,
                             const StepOptions& options) {
  const auto of_all = sum_over_ranks(numbers, mesh);
  // Sharding averages gradients over ranks; we want their sum.
  const auto scale =
      static_cast<double>(mesh.numel()) / of_all[0].clamp_min(1.0);
  const auto loss =
      run_backwards(model, micro_batches, scale, mesh.device(), options);
  // Of offloaded gradients it is on the host.
  const auto norm = norm_of(model, options).to(loss.device(), torch::kDouble);
  return torch::cat({of_all, sum_over_ranks(loss, mesh).view(1), norm.view(1)});
}

StepResult read_result(const at::Tensor& computed) {
  const auto seen = computed.cpu();
  const double* value = seen.const_data_ptr<double>();
  StepResult result;
  result.tokens = std::llround(value[0]);
  result.wish = value[1] > 0 ? Wish::stop : Wish::go_on;
  result.save = value[2] > 0 ? SaveHealth::failed : SaveHealth::fine;
  result.loss = value[3] / std::max(1.0, value[0]);
  result.grad_norm = value[4];
  result.updated =
      std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return result;
}

void step_clipped(AdamW& optimizer, const at::Tensor& computed,
                  const StepOptions& options, const at::Tensor& skip) {
  if (options.max_norm > 0) {
    optimizer.step_clipped(norm_in(computed), options.max_norm, skip);
  } else {
    optimizer.step_unless(skip);
  }
}

StepResult train_step(LanguageModel& model, torch::optim::Optimizer& optimizer,
                      const std::vector<Batch>& micro_batches,
                      const DeviceMesh& mesh, const StepOptions& options) {
  const at::Tensor computed =
      compute_gradients(model, micro_batches,
                        numbers_of_rank(micro_batches, options), mesh, options);
  // The one wait of a step for the device.
  const StepResult result = read_result(computed);
  if (result.updated &&
      options.optimizer_step == OptimizerStep::after_backward) {
    tell_before_change(options);
  }
  if (result.updated) clip_and_step(model, optimizer, computed, options);
  optimizer.zero_grad();
  return result;
}

}  // namespace tessera::train
