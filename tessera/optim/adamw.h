// AdamW in one kernel call for each optimizer parameter group.
//
//   tessera::AdamW optimizer(model->parameters(), 3e-4);
//   optimizer.step();
//
// A drop-in for `torch::optim::AdamW`: the same options and parameter groups,
// so schedulers, `zero_grad` and changes of `param_groups()` work as usual. The
// update is that of the paper (Loshchilov and Hutter, arXiv:1711.05101).
//
// Shards are pieces of flat master tensors, and so is their state here: the
// kernel runs over the longest ranges whose parameters stand in the same
// optimizer group, have a gradient and have taken the same number of steps.
// Plain parameters go along in the same call, each a range of its own. Nothing
// waits for the device.
//
// State is made when a parameter gets its first gradient. The two or three flat
// state tensors are as large as the master, also when this optimizer holds only
// some of its shards. It is seen by `state_of`; the base class's `state()`
// stays empty.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tessera/optim/device_rates.h"
#include "tessera/optim/fused_update.h"
#include "tessera/optim/kept_copies.h"
#include "tessera/optim/step_count.h"
#include "tessera/tensor/spread.h"

namespace tessera {

/// What AdamW remembers of one parameter; undefined tensors before its first
/// step. The moments have the sizes of the parameter: for a shard, of this
/// rank's part.
struct ParameterState {
  at::Tensor step;  // 0-dim fp32, on the parameter's device
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;  // defined with amsgrad only
};

class AdamW : public torch::optim::Optimizer {
 public:
  /// Errors: InvalidArgument for options out of range or of another optimizer.
  explicit AdamW(
      const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
      torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters,
                 torch::optim::AdamWOptions defaults = {});
  ~AdamW() override;

  /// Updates every parameter that has a gradient; one that is listed several
  /// times (tied) once, by the options of the first place.
  ///
  /// Returns: what `closure` returns; it is called first, with gradients on.
  /// Errors:  Unsupported for sparse gradients and complex parameters,
  ///          InvalidState for a parameter whose sizes, strides, dtype or
  ///          device changed since its first step. No parameter is changed
  ///          then.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As `step`, but where `skip`, a 0-dim tensor, is 1 instead of 0, parameters
  /// and state stay as they are. Nothing waits: the device decides.
  void step_unless(const at::Tensor& skip) { step_these(nullptr, {skip, {}}); }

  /// clip_grads_with_norm_(total_norm, max_norm), then `step`, in one pass over
  /// the gradients: on CUDA they are multiplied as they are read and stay as
  /// they were in memory; elsewhere they are clipped in place. `skip` as in
  /// step_unless, or undefined. Nothing waits.
  /// total_norm: of get_total_norm, one number. Errors: as `step`; and
  /// InvalidArgument for a negative max_norm or a total_norm of other sizes.
  void step_clipped(const at::Tensor& total_norm, double max_norm,
                    const at::Tensor& skip = {});

  /// A part of `step`: these parameters of it, as step_in_backward wants it.
  void step_only(const std::vector<at::Tensor>& parameters);

  // For steps captured in a CUDA graph (tessera/graph).
  /// Writes the groups' learning rates to where the kernels read them.
  void write_rates();
  /// Moves when steps use other tensors of state than before: after a first
  /// gradient, a load, or when parameters part.
  [[nodiscard]] uint64_t state_version() const { return state_version_; }

  /// The moments share memory with this optimizer, for reading and writing; the
  /// step is a copy.
  [[nodiscard]] ParameterState state_of(const at::Tensor& parameter) const;

  /// Copies `state` into place, as if the parameter had taken these steps here.
  /// May wait for the device.
  /// Errors: InvalidArgument for a parameter that is not in this optimizer, for
  ///         an undefined tensor, for other sizes, or for max_exp_avg_sq given
  ///         without amsgrad.
  void set_state_of(const at::Tensor& parameter, const ParameterState& state);

  /// The stock archive format of AdamW. It holds this rank's part and loads at
  /// the same number of ranks only; for anything else use checkpoints. Stock
  /// AdamW reads it, and its archives are read here.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Moments {
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor max_exp_avg_sq;
  };
  struct FlatMoments {
    std::shared_ptr<FlatMaster> master;
    Moments moments;  // laid out as the master
  };
  struct Slot {
    StepHandle steps;
    Moments moments;  // of a shard: views of the flat ones
    uint64_t round = 0;
  };
  struct Member;

  using Chosen = std::unordered_set<const c10::TensorImpl*>;

  /// Those that have a gradient, and are chosen; null: all are.
  [[nodiscard]] std::vector<Member> members_of(
      const torch::optim::OptimizerParamGroup& group, const Chosen* chosen);
  void step_these(const Chosen* chosen, const UpdateTerms& terms);
  Slot& slot_of(const at::Tensor& parameter,
                const torch::optim::AdamWOptions& options);
  void ensure_moments(Moments& moments, const at::Tensor& parameter,
                      const torch::optim::AdamWOptions& options);
  [[nodiscard]] Moments& flat_moments(
      const std::shared_ptr<FlatMaster>& master,
      const torch::optim::AdamWOptions& options);
  void update(const std::vector<Member>& members, size_t group,
              const UpdateTerms& terms, KeptCopies& copies);

  std::unordered_map<const c10::TensorImpl*, Slot> slots_;
  std::unordered_map<const FlatMaster*, FlatMoments> flat_;
  StepAssigner assigner_;
  DeviceRates rates_;
  uint64_t round_ = 0;
  uint64_t state_version_ = 0;
};

}  // namespace tessera
