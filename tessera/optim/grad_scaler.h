// Loss scaling for training in fp16, whose small gradients would become zero.
//
//   GradScaler scaler;
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                   // only to see or clip
//   clip_grad_norm_(model->parameters(), 1.0);    // the true gradients
//   scaler.step(optimizer);  // nothing, if a gradient is infinite or NaN
//   scaler.update();         // smaller then; larger in good times
//   optimizer.zero_grad();
//
// Names, defaults and order of calls are those of `torch.amp.GradScaler`. All
// ranks decide alike: whether any gradient is not finite is one all-reduce over
// the ranks among which parameters are cut (one for each set of ranks, when the
// optimizer's parameters are cut over several). Plain parameters are looked at,
// too. So every rank makes the same calls in the same order.
//
// Nothing waits for the device around AdamW, which leaves a step out there: the
// host goes on, and a CUDA graph may hold all of it. `step` of any other
// optimizer waits, to know whether to step.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

enum class Scaling { on, off };

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;      // above 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 2000;  // good steps in a row before the scale grows
  // off: `scale` returns its input, `step` steps, the rest does nothing.
  Scaling scaling = Scaling::on;
};

/// The entries of `torch.amp.GradScaler.state_dict()`, under its names.
struct GradScalerState {
  double scale = 0;
  double growth_factor = 0;
  double backoff_factor = 0;
  int64_t growth_interval = 0;
  int64_t growth_tracker = 0;  // good steps since the scale last changed;
                               // "_growth_tracker" in Python
  bool operator==(const GradScalerState&) const = default;
};

/// Whether an optimizer stepped; the same on all ranks.
class Stepped {
 public:
  explicit Stepped(bool stepped) : stepped_(stepped) {}
  /// One number, 0 where it stepped.
  explicit Stepped(at::Tensor skipped) : skipped_(std::move(skipped)) {}
  /// Waits for the device, where that decided.
  operator bool() const;

 private:
  bool stepped_ = true;
  at::Tensor skipped_;
};

class GradScaler {
 public:
  /// Errors: InvalidArgument for an option out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// `outputs` (a loss) times the scale; differentiable. A 0-dim loss in fp16
  /// or bf16 becomes fp32, one of more dims keeps its dtype. The first call
  /// decides on which device the scale lives.
  /// Errors: InvalidArgument for an undefined or integer tensor.
  [[nodiscard]] at::Tensor scale(const at::Tensor& outputs);
  [[nodiscard]] std::vector<at::Tensor> scale(
      const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the scale, in
  /// place, and finds out whether all are finite on all ranks. At most once
  /// for each optimizer and update, after its last backward.
  ///
  /// Errors: InvalidState when called twice, after `step`, or before any
  ///         `scale`; InvalidArgument for fp16 gradients, which have no room
  ///         for the unscaled value; Unsupported for sparse ones.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// `unscale_` unless done, then `optimizer.step()` unless a gradient is not
  /// finite on some rank. AdamW steps by `step_unless`, and nothing waits for
  /// the device; but on a rank where no parameter has a gradient, and with
  /// parameters on the CPU whose losses are on a GPU, it waits, as with every
  /// other optimizer.
  ///
  /// Errors:  InvalidState when called twice without `update`, and when no
  ///          parameter of the optimizer has a gradient on any rank; those of
  ///          `unscale_`.
  Stepped step(torch::optim::Optimizer& optimizer);

  /// Ends the step of all optimizers: the scale times backoff_factor if any had
  /// a gradient that is not finite, times growth_factor after growth_interval
  /// good steps in a row. Or `new_scale`, when given.
  /// Errors: InvalidState when no optimizer was stepped or unscaled (unless a
  ///         new scale is given), or before any `scale`; InvalidArgument for a
  ///         new scale that is not above 0.
  void update(std::optional<double> new_scale = {});

  [[nodiscard]] bool is_enabled() const {
    return options_.scaling == Scaling::on;
  }
  /// Waits for the device. 1 when scaling is off.
  [[nodiscard]] double get_scale() const;
  /// Of now: init_scale is as given.
  [[nodiscard]] const GradScalerOptions& options() const { return options_; }
  // Errors: InvalidArgument when out of range.
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t interval);

  /// After `update`. Waits for the device.
  [[nodiscard]] GradScalerState state_dict() const;
  /// Errors: InvalidArgument for values out of range.
  void load_state_dict(const GradScalerState& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    const torch::optim::Optimizer* optimizer;
    Stage stage = Stage::ready;
    // Of all ranks, two numbers: 0 if all gradients are finite, 0 if there is
    // none.
    at::Tensor found = {};
  };

  [[nodiscard]] Progress& progress_of(const torch::optim::Optimizer& optimizer);
  void require_scale(const char* who) const;
  static Stepped step_on_host(torch::optim::Optimizer& optimizer,
                              const at::Tensor& of_all_ranks);
  void set_options(const GradScalerOptions& options);

  GradScalerOptions options_;
  double next_scale_;         // while scale_ is undefined
  int64_t next_tracker_ = 0;  // likewise
  at::Tensor scale_;          // 0-dim fp32
  at::Tensor tracker_;        // 0-dim int32
  std::vector<Progress> progress_;
};

}  // namespace tessera
