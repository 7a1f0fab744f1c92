#include "tessera/optim/fused_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <tuple>
#include <utility>

namespace tessera {
namespace {

at::Tensor in_line(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.scalar_type() == parameter.scalar_type() &&
      gradient.strides() == parameter.strides()) {
    return gradient;
  }
  return at::empty_like(parameter).copy_(gradient);
}

}  // namespace

FusedUpdate::Lists& FusedUpdate::lists_for(const at::Tensor& parameter) {
  for (Lists& lists : lists_) {
    const at::Tensor& first = lists.parameters.front();
    if (first.scalar_type() == parameter.scalar_type() &&
        first.device() == parameter.device()) {
      return lists;
    }
  }
  return lists_.emplace_back();
}

void FusedUpdate::add(UpdateRange range) {
  if (range.parameter.numel() == 0) return;
  at::NoGradGuard no_grad;
  if (!range.parameter.is_non_overlapping_and_dense()) {
    at::Tensor dense = at::empty_like(range.parameter).copy_(range.parameter);
    write_backs_.push_back({std::move(range.parameter), dense});
    range.parameter = std::move(dense);
  }
  Lists& lists = lists_for(range.parameter);
  lists.gradients.push_back(in_line(range.gradient, range.parameter));
  lists.parameters.push_back(std::move(range.parameter));
  lists.exp_avgs.push_back(std::move(range.exp_avg));
  lists.exp_avg_sqs.push_back(std::move(range.exp_avg_sq));
  lists.steps.push_back(std::move(range.step));
  if (range.max_exp_avg_sq.defined()) {
    lists.max_exp_avg_sqs.push_back(std::move(range.max_exp_avg_sq));
  }
}

// On CUDA the rate is read on the device, in a captured step and in any other:
// both round it to fp32 alike.
void FusedUpdate::update(Lists& lists,
                         const torch::optim::AdamWOptions& options,
                         const RateOn& rate_on,
                         const std::optional<at::Tensor>& skip) {
  const auto [beta1, beta2] = options.betas();
  const auto run = [&, b1 = beta1, b2 = beta2](const auto& rate) {
    at::_fused_adamw_(lists.parameters, lists.gradients, lists.exp_avgs,
                      lists.exp_avg_sqs, lists.max_exp_avg_sqs, lists.steps,
                      rate, b1, b2, options.weight_decay(), options.eps(),
                      options.amsgrad(), /*maximize=*/false,
                      /*grad_scale=*/std::nullopt, skip);
  };
  const c10::Device device = lists.parameters.front().device();
  if (device.is_cuda()) {
    run(rate_on(device));
  } else {
    run(options.lr());
  }
}

void FusedUpdate::run(const torch::optim::AdamWOptions& options,
                      const RateOn& rate_on, const at::Tensor& skip) {
  at::NoGradGuard no_grad;
  for (Lists& lists : lists_) {
    std::optional<at::Tensor> skip_there;
    if (skip.defined()) {
      skip_there = skip.to(lists.parameters.front().device(), at::kFloat);
    }
    update(lists, options, rate_on, skip_there);
  }
  for (WriteBack& back : write_backs_) back.parameter.copy_(back.updated);
}

}  // namespace tessera
