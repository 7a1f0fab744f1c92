#include "tessera/optim/clip_grad_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/optim/gradient_parts.h"
#include "tessera/tensor/chunk_norms.h"

namespace tessera {
namespace {

/// The norms of the chunks of these gradients of `part`, in order. What
/// backward has taken is not taken again.
std::vector<at::Tensor> norms_of(const GradientPart& part,
                                 const std::vector<at::Tensor>& gradients,
                                 double norm_type) {
  const auto kept_of = [&](const at::Tensor& gradient) {
    return norm_type == kNormInBackward
               ? part.norms_kept.find(gradient.unsafeGetTensorImpl())
               : part.norms_kept.end();
  };
  std::vector<at::Tensor> open;
  for (const at::Tensor& gradient : gradients) {
    if (kept_of(gradient) == part.norms_kept.end()) open.push_back(gradient);
  }
  const auto taken = chunk_norms(open, norm_type);
  auto next = taken.begin();
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) {
    const auto kept = kept_of(gradient);
    const auto& own = kept == part.norms_kept.end() ? *next++ : kept->second;
    norms.insert(norms.end(), own.begin(), own.end());
  }
  return norms;
}

/// The norms of chunks of this rank's gradients, 1-D in fp64; may be empty.
at::Tensor local_norms(const GradientPart& part, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const auto& [kind, list] : by_device_and_dtype(part.gradients)) {
    const auto stacked = at::stack(norms_of(part, list, norm_type));
    norms.push_back(stacked.to(part.device, at::kDouble));
  }
  if (norms.empty()) {
    return at::zeros({0}, at::device(part.device).dtype(at::kDouble));
  }
  return norms.size() == 1 ? norms[0] : at::cat(norms);
}

Pending all_reduce(const GradientPart& part, const at::Tensor& tensor,
                   ReduceOp op) {
  if (!part.communicator || part.communicator->size() == 1) return {};
  return part.communicator->all_reduce(
      tensor, op, {.phase = "clip", .op = "clip_grad_norm_"});
}

at::Tensor sum_powers(const GradientParts& all, double norm_type) {
  std::vector<at::Tensor> sums;
  std::vector<Pending> pending;
  for (const GradientPart& part : all.parts) {
    sums.push_back(local_norms(part, norm_type).pow(norm_type).sum());
    pending.push_back(all_reduce(part, sums.back(), ReduceOp::sum));
  }
  for (Pending& call : pending) call.wait();
  at::Tensor total = at::zeros({}, at::device(all.device).dtype(at::kDouble));
  for (const at::Tensor& sum : sums) total.add_(sum.to(all.device));
  return total;
}

// A max over ranks may drop NaN, so whether there is one travels beside it.
at::Tensor largest(const GradientParts& all) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<at::Tensor> maxima;
  std::vector<Pending> pending;
  for (const GradientPart& part : all.parts) {
    at::Tensor norms = local_norms(part, kInfinity);
    if (norms.numel() == 0) norms = norms.new_zeros({1});
    at::Tensor has_nan = norms.isnan().any().to(at::kDouble);
    maxima.push_back(
        at::stack({at::nan_to_num(norms, 0.0, kInfinity).max(), has_nan}));
    pending.push_back(all_reduce(part, maxima.back(), ReduceOp::max));
  }
  for (Pending& call : pending) call.wait();
  at::Tensor total = at::zeros({2}, at::device(all.device).dtype(at::kDouble));
  for (const at::Tensor& own : maxima) {
    total = at::maximum(total, own.to(all.device));
  }
  at::Tensor nan = at::full({}, std::nan(""), total.options());
  return at::where(total[1] > 0, nan, total[0]);
}

at::Tensor norm_over(const GradientParts& all, const ClipOptions& options) {
  const double p = options.norm_type;
  at::Tensor norm =
      std::isinf(p) ? largest(all) : sum_powers(all, p).pow(1.0 / p);
  if (options.on_nonfinite == NonFinite::raise) {
    const double value = norm.item<double>();
    require<InvalidState>(std::isfinite(value), [&] {
      return str("clip_grad_norm_: the ", p, "-norm over all gradients is ",
                 value,
                 ", so they cannot be clipped; none was changed. Skip this "
                 "step, or lower the learning rate or the loss scale.");
    });
  }
  return norm.to(all.has_double ? at::kDouble : at::kFloat);
}

void validate(const ClipOptions& options) {
  require<InvalidArgument>(options.norm_type > 0, [&] {
    return str("clip_grad_norm_: norm_type is ", options.norm_type,
               "; give a number above 0, or infinity.");
  });
}

void check_max_norm(const char* who, double max_norm) {
  require<InvalidArgument>(max_norm >= 0, [&] {
    return str(who, ": max_norm is ", max_norm, "; give 0 or more.");
  });
}

void scale(const GradientParts& all, const at::Tensor& factor) {
  for (const GradientPart& part : all.parts) {
    for (const auto& [kind, list] : by_device_and_dtype(part.gradients)) {
      at::_foreach_mul_(list, factor.to(kind.first));
    }
  }
}

}  // namespace

at::Tensor get_total_norm(const std::vector<at::Tensor>& parameters,
                          const ClipOptions& options) {
  validate(options);
  at::NoGradGuard no_grad;
  return norm_over(collect_gradients(parameters, "clip_grad_norm_"), options);
}

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                           double max_norm, const ClipOptions& options) {
  validate(options);
  check_max_norm("clip_grad_norm_", max_norm);
  at::NoGradGuard no_grad;
  const GradientParts all = collect_gradients(parameters, "clip_grad_norm_");
  at::Tensor norm = norm_over(all, options);
  scale(all, (max_norm / (norm + 1e-6)).clamp_max(1.0));
  return norm;
}

at::Tensor clip_factor(const at::Tensor& total_norm, double max_norm,
                       const char* who) {
  check_max_norm(who, max_norm);
  require<InvalidArgument>(
      total_norm.defined() && total_norm.numel() == 1, [&] {
        return tessera::str(who,
                            ": total_norm must be one number, as "
                            "get_total_norm returns it.");
      });
  at::NoGradGuard no_grad;
  const at::Tensor norm = total_norm.detach().reshape({});
  return (max_norm / (norm + 1e-6)).clamp_max(1.0);
}

void clip_grads_with_norm_(const std::vector<at::Tensor>& parameters,
                           double max_norm, const at::Tensor& total_norm) {
  const char* who = "clip_grads_with_norm_";
  const at::Tensor factor = clip_factor(total_norm, max_norm, who);
  at::NoGradGuard no_grad;
  scale(collect_gradients(parameters, who), factor);
}

}  // namespace tessera
