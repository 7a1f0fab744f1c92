// The gradients of a group, from whole to flat.
//
//   gradients (whole) --reduce--> flat gradient, a piece for each shard's .grad
//
// Gradients land in the reduce input at their final offsets, or are read where
// backward left them; the output *is* the flat gradient. Always summed, and
// divided once.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/shard/gradient_reduction.h"
#include "tessera/shard/group_plan.h"
#include "tessera/shard/held_gradients.h"
#include "tessera/shard/shard_set.h"

namespace tessera {

class GradientBuffer {
 public:
  /// `shards` must outlive it.
  GradientBuffer(std::shared_ptr<const GroupPlan> plan, ShardSet& shards);

  /// Those that have come and are not being summed.
  [[nodiscard]] HeldGradients& held() { return held_; }
  [[nodiscard]] const HeldGradients& held() const { return held_; }

  /// Starts the sum over ranks of what is held; zeros where nothing is.
  void start(OutputMemory memory, const CallLabel& label);
  /// Takes sums started earlier further: starts their second step, over the
  /// replicas, and lets go of their inputs, so that one is in flight.
  void go_on(const CallLabel& label);
  void free_inputs();
  /// Waits for all sums started, and adds them to the shards' gradients, for
  /// the parameters for which `had_gradient` says so.
  void finish(std::vector<bool> had_gradient, const CallLabel& label);
  /// Whether nobody but the optimizer looks at the shards' gradients between
  /// the sums and the step: no hook, and no sums kept for a later backward.
  [[nodiscard]] bool unobserved() const;
  /// Drops what waits for a later backward.
  void drop_waiting() noexcept;
  /// Waits for sums in flight and drops them, and what waits.
  void abandon() noexcept;

  /// Whether sums are taken over the replicas too (HSDP). While not, they are
  /// kept and added to the next that is.
  bool all_reduce = true;
  /// Whether norms are taken behind the sums, where the sums are the gradients.
  bool takes_norms = false;
  /// What sums are divided by; unset: the number of ranks.
  std::optional<double> divide_factor;
  /// Changes the flat sum in place, before the division.
  std::function<void(const at::Tensor&)> all_reduce_hook;

 private:
  void start_second_steps(const CallLabel& label);
  [[nodiscard]] bool sums_become_gradients() const;
  [[nodiscard]] std::vector<FlatPiece> trainable_pieces() const;
  [[nodiscard]] ReductionInput take_input();
  /// By that of the communicator, not of the user.
  [[nodiscard]] bool by_reduce_scatter() const;
  [[nodiscard]] c10::ScalarType sent_dtype() const;
  /// What is still to be divided by, once all ranks are summed.
  [[nodiscard]] double divisor() const;
  [[nodiscard]] ReduceOp reduce_op() const;
  void keep_partial(const at::Tensor& output,
                    const std::vector<bool>& had_gradient);
  void give_gradients(const at::Tensor& output, std::optional<double> divisor,
                      const std::vector<bool>& had_gradient);
  void run_shard_pre_hooks(const at::Tensor& reduced,
                           const std::vector<bool>& had_gradient);
  [[nodiscard]] at::Tensor guarded_copy(size_t i,
                                        const at::Tensor& piece) const;
  void run_shard_hooks(const std::vector<bool>& had_gradient);
  [[nodiscard]] at::Tensor take_as_flat_grad(const at::Tensor& reduced);
  void add_to_flat_grad(const at::Tensor& flat, const at::Tensor& reduced);
  [[nodiscard]] bool grad_in_place(size_t i, const at::Tensor& flat) const;
  void give_gradient(size_t i, const at::Tensor& flat,
                     const at::Tensor& reduced);

  std::shared_ptr<const GroupPlan> plan_;
  ShardSet& shards_;
  HeldGradients held_;
  std::vector<GradientReduction> reductions_;
  at::Tensor partial_;  // summed over the shard axis only; flat, reduce dtype
  std::vector<bool> partial_had_;
};

}  // namespace tessera
