// AdamW's state in the archive format of the stock optimizer.
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <memory>
#include <utility>

#include "tessera/optim/adamw.h"

namespace tessera {

using torch::optim::AdamWParamState;

// A stock optimizer over the same groups knows the format. It gets copies: a
// view would be written with all of its flat storage.
void AdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::AdamW stock(param_groups_);
  for (const auto& group : param_groups_) {
    for (const at::Tensor& parameter : group.params()) {
      const ParameterState own = state_of(parameter);
      if (!own.step.defined()) continue;
      auto saved = std::make_unique<AdamWParamState>();
      saved->step(std::llround(own.step.item<double>()));
      saved->exp_avg(own.exp_avg.clone());
      saved->exp_avg_sq(own.exp_avg_sq.clone());
      if (own.max_exp_avg_sq.defined()) {
        saved->max_exp_avg_sq(own.max_exp_avg_sq.clone());
      }
      stock.state()[parameter.unsafeGetTensorImpl()] = std::move(saved);
    }
  }
  stock.save(archive);
}

void AdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::AdamW stock(param_groups_);
  stock.load(archive);
  for (size_t i = 0; i < param_groups_.size(); ++i) {
    param_groups_[i].set_options(stock.param_groups()[i].options().clone());
    for (const at::Tensor& parameter : param_groups_[i].params()) {
      auto at = stock.state().find(parameter.unsafeGetTensorImpl());
      if (at == stock.state().end()) continue;
      const auto& saved = static_cast<const AdamWParamState&>(*at->second);
      set_state_of(parameter, {at::scalar_tensor(saved.step(), at::kFloat),
                               saved.exp_avg(), saved.exp_avg_sq(),
                               saved.max_exp_avg_sq()});
    }
  }
}

}  // namespace tessera
