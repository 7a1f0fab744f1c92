#include "tessera/optim/grad_scaler.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <typeinfo>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/optim/unscale.h"

namespace tessera {
namespace {

void check_scale(const char* who, double scale) {
  require<InvalidArgument>(scale > 0 && std::isfinite(scale), [&] {
    return str("GradScaler: ", who, " is ", scale,
               "; give a finite number above 0.");
  });
}

void validate(const GradScalerOptions& options) {
  check_scale("init_scale", options.init_scale);
  require<InvalidArgument>(
      options.growth_factor > 1 && std::isfinite(options.growth_factor), [&] {
        return str("GradScaler: growth_factor is ", options.growth_factor,
                   "; give a number above 1.");
      });
  require<InvalidArgument>(
      options.backoff_factor > 0 && options.backoff_factor < 1, [&] {
        return str("GradScaler: backoff_factor is ", options.backoff_factor,
                   "; give a number between 0 and 1.");
      });
  require<InvalidArgument>(options.growth_interval >= 1, [&] {
    return str("GradScaler: growth_interval is ", options.growth_interval,
               "; give 1 or more.");
  });
}

std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(),
                      group.params().end());
  }
  return parameters;
}

bool any_gradient(const torch::optim::Optimizer& optimizer) {
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& p) { return p.grad().defined(); });
}

}  // namespace

Stepped::operator bool() const {
  return skipped_.defined() ? skipped_.item<float>() == 0 : stepped_;
}

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), next_scale_(options.init_scale) {
  validate(options);
}

GradScaler::Progress& GradScaler::progress_of(
    const torch::optim::Optimizer& optimizer) {
  const auto at = std::find_if(
      progress_.begin(), progress_.end(),
      [&](const Progress& own) { return own.optimizer == &optimizer; });
  if (at != progress_.end()) return *at;
  return progress_.emplace_back(Progress{.optimizer = &optimizer});
}

void GradScaler::require_scale(const char* who) const {
  require<InvalidState>(scale_.defined(), [&] {
    return str("GradScaler: ", who,
               " before any scale(); call scale(loss).backward() first.");
  });
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!is_enabled()) return outputs;
  require<InvalidArgument>(outputs.defined() && outputs.is_floating_point(),
                           [] {
                             return str(
                                 "GradScaler: scale() takes a floating-point "
                                 "tensor, such as a loss.");
                           });
  if (!scale_.defined()) {
    const auto on_device = at::device(outputs.device());
    scale_ = at::full({}, next_scale_, on_device.dtype(at::kFloat));
    tracker_ = at::full({}, next_tracker_, on_device.dtype(at::kInt));
  }
  return outputs * scale_.to(outputs.device());
}

std::vector<at::Tensor> GradScaler::scale(
    const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  require_scale("unscale_()");
  Progress& progress = progress_of(optimizer);
  require<InvalidState>(progress.stage == Stage::ready, [&] {
    return str("GradScaler: unscale_() of an optimizer that was ",
               progress.stage == Stage::unscaled ? "unscaled" : "stepped",
               " already; call update() first.");
  });
  progress.found = unscale_gradients(parameters_of(optimizer), scale_);
  progress.stage = Stage::unscaled;
}

Stepped GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return Stepped(true);
  }
  require_scale("step()");
  Progress& progress = progress_of(optimizer);
  require<InvalidState>(progress.stage != Stage::stepped, [] {
    return str(
        "GradScaler: step() of an optimizer that was stepped already; call "
        "update() once after the steps of all optimizers.");
  });
  if (progress.stage == Stage::ready) unscale_(optimizer);
  // Itself: a class derived from it has a step() of its own.
  auto* const adamw = typeid(optimizer) == typeid(AdamW)
                          ? static_cast<AdamW*>(&optimizer)
                          : nullptr;
  if (!adamw || !any_gradient(optimizer)) {
    const Stepped stepped = step_on_host(optimizer, progress.found);
    progress.stage = Stage::stepped;
    return stepped;
  }
  const at::Tensor skip = progress.found[0];
  adamw->step_unless(skip);
  progress.stage = Stage::stepped;
  return Stepped(skip);
}

Stepped GradScaler::step_on_host(torch::optim::Optimizer& optimizer,
                                 const at::Tensor& of_all_ranks) {
  const at::Tensor found = of_all_ranks.cpu();  // waits
  require<InvalidState>(found[1].item<float>() > 0, [] {
    return str(
        "GradScaler: step() of an optimizer none of whose parameters has a "
        "gradient; call scale(loss).backward() before.");
  });
  const bool finite = found[0].item<float>() == 0;
  if (finite) optimizer.step();
  return Stepped(finite);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!is_enabled()) return;
  require_scale("update()");
  at::NoGradGuard no_grad;
  if (new_scale) {
    check_scale("new_scale", *new_scale);
    scale_.fill_(*new_scale);
  } else {
    at::Tensor not_finite = at::zeros({1}, scale_.options());
    bool any = false;
    for (const Progress& progress : progress_) {
      if (!progress.found.defined()) continue;
      any = true;
      not_finite.add_(progress.found.narrow(0, 0, 1).to(scale_.device()));
    }
    require<InvalidState>(any, [] {
      return str(
          "GradScaler: update() without a step() or unscale_() since the last "
          "one.");
    });
    at::_amp_update_scale_(scale_, tracker_, not_finite, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  }
  progress_.clear();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.defined() ? scale_.item<double>() : next_scale_;
}

void GradScaler::set_options(const GradScalerOptions& options) {
  validate(options);
  options_ = options;
}

void GradScaler::set_growth_factor(double factor) {
  GradScalerOptions options = options_;
  options.growth_factor = factor;
  set_options(options);
}

void GradScaler::set_backoff_factor(double factor) {
  GradScalerOptions options = options_;
  options.backoff_factor = factor;
  set_options(options);
}

void GradScaler::set_growth_interval(int64_t interval) {
  GradScalerOptions options = options_;
  options.growth_interval = interval;
  set_options(options);
}

GradScalerState GradScaler::state_dict() const {
  return {.scale = get_scale(),
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker =
              tracker_.defined() ? tracker_.item<int64_t>() : next_tracker_};
}

void GradScaler::load_state_dict(const GradScalerState& state) {
  if (!is_enabled()) return;
  check_scale("the loaded scale", state.scale);
  require<InvalidArgument>(state.growth_tracker >= 0, [&] {
    return str("GradScaler: the loaded growth_tracker is ",
               state.growth_tracker, "; it counts steps from 0.");
  });
  GradScalerOptions options = options_;
  options.growth_factor = state.growth_factor;
  options.backoff_factor = state.backoff_factor;
  options.growth_interval = state.growth_interval;
  set_options(options);
  next_scale_ = state.scale;
  next_tracker_ = state.growth_tracker;
  if (!scale_.defined()) return;
  scale_.fill_(state.scale);
  tracker_.fill_(state.growth_tracker);
}

}  // namespace tessera
