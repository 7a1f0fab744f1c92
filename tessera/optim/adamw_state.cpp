#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/adamw_checks.h"

// What AdamW remembers, read and written from outside.

namespace tessera {

using torch::optim::OptimizerParamGroup;

namespace {

void copy_into(const at::Tensor& to, const at::Tensor& from, const char* what,
               const at::Tensor& parameter) {
  require<InvalidArgument>(
      to.defined() == from.defined() &&
          (!to.defined() || to.sizes() == from.sizes()),
      [&] {
        auto shape = [](const at::Tensor& t) {
          return t.defined() ? tessera::str(t.sizes()) : std::string("none");
        };
        return str("AdamW: ", what, " of ", adamw::name_of(parameter),
                   " must be ", shape(to), " here, but the given state has ",
                   shape(from),
                   ". State saved by rank loads at the same number of ranks "
                   "and with the same amsgrad only.");
      });
  if (to.defined()) to.copy_(from);
}

}  // namespace

ParameterState AdamW::state_of(const at::Tensor& parameter) const {
  auto at = slots_.find(parameter.unsafeGetTensorImpl());
  if (at == slots_.end() || !at->second.steps) return {};
  const auto& [steps, moments, round] = at->second;
  return {steps->value.clone(), moments.exp_avg, moments.exp_avg_sq,
          moments.max_exp_avg_sq};
}

void AdamW::set_state_of(const at::Tensor& parameter,
                         const ParameterState& state) {
  auto holds = [&](const OptimizerParamGroup& group) {
    return std::any_of(
        group.params().begin(), group.params().end(),
        [&](const at::Tensor& own) { return own.is_same(parameter); });
  };
  auto group = std::find_if(param_groups_.begin(), param_groups_.end(), holds);
  require<InvalidArgument>(group != param_groups_.end(), [&] {
    return tessera::str("AdamW: ", adamw::name_of(parameter),
                        " is not in this optimizer. Give the tensor that "
                        "module->parameters() returns.");
  });
  require<InvalidArgument>(state.step.defined(), [&] {
    return tessera::str("AdamW: the state given for ",
                        adamw::name_of(parameter), " has no step.");
  });
  at::NoGradGuard no_grad;
  Slot& slot = slot_of(parameter, adamw::options_of(*group));
  copy_into(slot.moments.exp_avg, state.exp_avg, "exp_avg", parameter);
  copy_into(slot.moments.exp_avg_sq, state.exp_avg_sq, "exp_avg_sq", parameter);
  copy_into(slot.moments.max_exp_avg_sq, state.max_exp_avg_sq, "max_exp_avg_sq",
            parameter);
  assigner_.assign(slot.steps, state.step.item<double>(), parameter.device());
  ++state_version_;
}

}  // namespace tessera
