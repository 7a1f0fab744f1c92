#include "tessera/optim/fused_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>

#include <optional>
#include <tuple>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/kernels/adamw.h"

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
  lists.copies.push_back(std::move(range.copy));
  if (range.max_exp_avg_sq.defined()) {
    lists.max_exp_avg_sqs.push_back(std::move(range.max_exp_avg_sq));
  }
}

// On CUDA the rate is read on the device, in a captured step and in any other:
// both round it to fp32 alike.
bool FusedUpdate::update_in_one_pass(Lists& lists,
                                     const torch::optim::AdamWOptions& options,
                                     const RateOn& rate_on,
                                     const UpdateTerms& terms) {
  const c10::Device device = lists.parameters.front().device();
  if (!device.is_cuda()) return false;
  const auto [beta1, beta2] = options.betas();
  const AdamWNumbers numbers = {.beta1 = beta1,
                                .beta2 = beta2,
                                .eps = options.eps(),
                                .weight_decay = options.weight_decay()};
  const at::Tensor rate = rate_on(device);
  for (size_t i = 0; i < lists.parameters.size(); ++i) {
    const bool done = adamw_in_one_pass(
        {.parameter = lists.parameters[i],
         .gradient = lists.gradients[i],
         .exp_avg = lists.exp_avgs[i],
         .exp_avg_sq = lists.exp_avg_sqs[i],
         .max_exp_avg_sq =
             options.amsgrad() ? lists.max_exp_avg_sqs[i] : at::Tensor(),
         .copy = lists.copies[i],
         .step = lists.steps[i],
         .rate = rate,
         .skip = terms.skip,
         .factor = terms.factor},
        numbers);
    if (!done && i == 0) return false;
    require<InvalidState>(done, [] {
      return str("AdamW: one range has a kernel and another of its kind not.");
    });
  }
  return true;
}

void FusedUpdate::update(Lists& lists,
                         const torch::optim::AdamWOptions& options,
                         const RateOn& rate_on, const UpdateTerms& terms) {
  if (update_in_one_pass(lists, options, rate_on, terms)) return;
  if (terms.factor.defined()) {
    at::_foreach_mul_(lists.gradients, terms.factor);
  }
  const std::optional<at::Tensor> skip =
      terms.skip.defined() ? std::optional(terms.skip) : std::nullopt;
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
  for (size_t i = 0; i < lists.copies.size(); ++i) {
    if (lists.copies[i].defined()) lists.copies[i].copy_(lists.parameters[i]);
  }
}

void FusedUpdate::run(const torch::optim::AdamWOptions& options,
                      const RateOn& rate_on, const UpdateTerms& terms) {
  at::NoGradGuard no_grad;
  for (Lists& lists : lists_) {
    const c10::Device device = lists.parameters.front().device();
    const auto there = [&](const at::Tensor& number) {
      return number.defined() ? number.to(device, at::kFloat) : number;
    };
    update(lists, options, rate_on, {there(terms.skip), there(terms.factor)});
  }
  for (WriteBack& back : write_backs_) back.parameter.copy_(back.updated);
}

}  // namespace tessera
