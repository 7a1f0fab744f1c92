#include "tessera/optim/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/optim/gradient_parts.h"

namespace tessera {
namespace {

// An fp16 gradient that was unscaled would lose what scaling has saved.
void refuse_half(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    require<InvalidArgument>(
        !gradient.defined() || gradient.scalar_type() != at::kHalf, [&] {
          const Spread* spread = spread_of(parameter);
          return tessera::str(
              "GradScaler: the gradient of ",
              spread ? spread->name : "a parameter", " ", parameter.sizes(),
              " is fp16, which cannot hold it unscaled. Keep parameters in "
              "fp32, and compute in fp16 by mp_policy.param_dtype.");
        });
  }
}

/// Unscales, and returns 1 if anything was not finite, else 0; a tensor of 1.
at::Tensor unscale(const GradientPart& part, const at::Tensor& inverse) {
  at::Tensor found = at::zeros({1}, inverse.options());
  for (const auto& [kind, list] : by_device_and_dtype(part.gradients)) {
    const auto device = kind.first;
    at::Tensor own = at::zeros({1}, inverse.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(list, own,
                                                   inverse.to(device));
    // The operator does not tell that it writes.
    for (const at::Tensor& gradient : list) {
      if (!gradient.is_inference()) {
        gradient.unsafeGetTensorImpl()->bump_version();
      }
    }
    found = at::maximum(found, own.to(found.device()));
  }
  return found;
}

/// The sets of ranks that hold these parameters, cut or whole, by size: from
/// few ranks to many, what one set has found goes on to those that hold it.
std::vector<Communicator*> deciders(const std::vector<at::Tensor>& parameters) {
  std::vector<Communicator*> all;
  for (const at::Tensor& parameter : parameters) {
    const Spread* spread = spread_of(parameter);
    if (!spread) continue;
    Communicator* const own =
        (spread->holders ? spread->holders : spread->communicator).get();
    if (!own || own->size() == 1) continue;
    if (std::find(all.begin(), all.end(), own) == all.end()) all.push_back(own);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto* a, const auto* b) {
    return a->size() < b->size();
  });
  return all;
}

}  // namespace

at::Tensor unscale_gradients(const std::vector<at::Tensor>& parameters,
                             const at::Tensor& scale) {
  at::NoGradGuard no_grad;
  refuse_half(parameters);
  const GradientParts all = collect_gradients(parameters, "GradScaler");
  // In fp64, as a scale may be any number.
  const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found = at::zeros({2}, scale.options());
  if (std::any_of(parameters.begin(), parameters.end(),
                  [](const auto& p) { return p.grad().defined(); })) {
    found[1].fill_(1);
  }
  at::Tensor not_finite = found.narrow(0, 0, 1);
  for (const GradientPart& part : all.parts) {
    not_finite.copy_(at::maximum(not_finite, unscale(part, inverse)));
  }
  for (Communicator* communicator : deciders(parameters)) {
    const at::Tensor there = found.to(communicator->device());
    communicator
        ->all_reduce(there, ReduceOp::max,
                     {.phase = "optimizer", .op = "GradScaler"})
        .wait();
    if (!there.is_same(found)) found.copy_(there);
  }
  return found;
}

}  // namespace tessera
