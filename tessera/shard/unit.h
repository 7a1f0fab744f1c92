// One fully_shard call: a module (or a list), its groups of parameters, and
// what happens to them when an operator reads one or a gradient arrives.
//
// A unit is kept alive by what needs it: the storages of its full parameters
// (so also by the autograd graphs that saved them), the gradient hooks, and the
// units below it. It holds full parameters weakly.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/module/gated_storage.h"
#include "tessera/shard/backward_step.h"
#include "tessera/shard/forward_clock.h"
#include "tessera/shard/input_cast.h"
#include "tessera/shard/options.h"
#include "tessera/shard/parameter_group.h"
#include "tessera/shard/read_progress.h"

namespace tessera {

class ShardContext;

/// Counters for tests and reports.
struct UnitCounts {
  int64_t gathers = 0;
  int64_t reduces = 0;
};

class Unit final : public StorageOwner,
                   public std::enable_shared_from_this<Unit> {
 public:
  /// `covered` are the modules and all below them that no earlier unit has.
  using ModuleIds = std::vector<const torch::nn::Module*>;
  Unit(std::string name, ModuleIds modules, ModuleIds covered,
       const FullyShardOptions& options,
       std::vector<std::unique_ptr<ParameterGroup>> groups);
  ~Unit() override;

  /// Takes the modules' parameters over and installs the gradient hooks.
  void take_over();

  [[nodiscard]] const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  /// The modules given to fully_shard, to be compared only: they may be gone.
  [[nodiscard]] const ModuleIds& modules() const { return modules_; }
  /// Whether this unit took the parameters that `module` holds directly.
  [[nodiscard]] bool covers(const torch::nn::Module* module) const;
  [[nodiscard]] const FullyShardOptions& options() const { return options_; }
  [[nodiscard]] const std::vector<std::unique_ptr<ParameterGroup>>& groups()
      const {
    return groups_;
  }
  [[nodiscard]] const UnitCounts& counts() const { return counts_; }
  void reset_counts() { counts_ = {}; }

  // The tree of units.
  [[nodiscard]] const std::shared_ptr<ShardContext>& context() const {
    return context_;
  }
  /// Takes the streams of the tree, if its mesh is the tree's.
  void set_context(std::shared_ptr<ShardContext> context);
  [[nodiscard]] const std::shared_ptr<const ShardLanes>& lanes() const {
    return groups_.front()->lanes();
  }
  [[nodiscard]] const std::shared_ptr<Unit>& parent() const { return parent_; }
  void set_parent(std::shared_ptr<Unit> parent);
  [[nodiscard]] bool has_units_below() const { return num_below_ > 0; }
  [[nodiscard]] bool is_ancestor_of(const Unit& other) const;

  // StorageOwner: the gate's questions.
  void before_read(const OperatorUse& use) override;
  void after_read() noexcept override;
  [[noreturn]] void refuse_write(const char* name,
                                 const at::Tensor& tensor) override;
  [[noreturn]] void refuse_grad(const at::Tensor& tensor) const override;
  at::Tensor cast_input(const at::Tensor& input) override;
  [[nodiscard]] bool casts_inputs() const override;

  // Full parameters.
  void gather(std::string_view phase, std::string_view op);
  /// The first half of it: `gather` must follow before anything is read.
  void start_gather(std::string_view phase, std::string_view op);
  void reshard();
  /// Forward is through with it: frees what it does not keep for backward.
  void leave_forward();
  [[nodiscard]] bool gathered() const;
  /// Whether a gather was started and not waited for.
  [[nodiscard]] bool gathering() const;
  [[nodiscard]] bool stale() const;
  /// Whether a shard was written after the last gather that a graph may hold.
  [[nodiscard]] bool written_since_gather() const;
  /// Whether `node` is of a forward pass that saw other values than those that
  /// are, or will be, gathered now.
  [[nodiscard]] bool written_since(const torch::autograd::Node& node) const;
  [[nodiscard]] bool kept_after_forward() const;
  void set_reshard_after_forward(Reshard reshard) {
    options_.reshard_after_forward = reshard;
  }
  // FSDP2's set_reshard_after_backward.
  bool reshard_after_backward = true;
  // Instead of what a learned order expects next; empty: that order.
  std::vector<std::weak_ptr<Unit>> prefetch_in_forward;
  std::vector<std::weak_ptr<Unit>> prefetch_in_backward;
  int calls_under_way = 0;  // through call(module, ...)
  [[nodiscard]] int64_t full_bytes() const;

  // Gradients.
  void on_gradient(size_t group, size_t i);
  /// Backward awaits nothing more of it: frees it, if it may go so early.
  void release_on_completion();
  [[nodiscard]] bool trainable() const;
  [[nodiscard]] bool holds_gradients() const;
  /// HSDP: whether gradients are summed along the shard axis only, for now.
  [[nodiscard]] bool waits_for_replicas() const;
  /// All gradients that this pass can bring have come (none awaited for a
  /// frozen unit).
  [[nodiscard]] bool complete() const;
  /// Of this pass: this rank has a gradient for each parameter that wants one,
  /// or no rank has any, for the unit takes no part or is not synchronised.
  [[nodiscard]] bool has_all_gradients() const;
  void start_reduce();
  /// Takes the sum further, and steps this unit if its optimizer may go early.
  void go_on_with_reduce();
  /// Lets go of whole gradients, once the compute stream may.
  void free_reduce_inputs();
  void finish_reduce(const std::vector<std::vector<bool>>& had_gradient);
  /// Behind `finish_reduce`, if its norms are wanted in backward.
  void keep_norms();
  /// Steps what has not, behind `finish_reduce`; the current stream then waits
  /// for all of it.
  void step_at_end();
  /// Which parameters this rank had a gradient for, of those reduced in this
  /// pass; by group.
  [[nodiscard]] const std::vector<std::vector<bool>>& reduced_gradients()
      const {
    return reduced_gradients_;
  }
  /// Forgets what the pass has noted. Gradients that wait for a later backward
  /// (sync off) stay.
  void end_pass();
  void abandon_pass() noexcept;

  // Of an optimizer in backward.
  BackwardStep step;
  bool norm_in_backward = false;
  [[nodiscard]] bool takes_norms() const {
    return norm_in_backward && !step.is_set();
  }

  // What this pass has seen; the context's bookkeeping.
  struct Pass {
    bool took_part = false;    // gathered with grad mode on, or for backward
    bool joined_late = false;  // took part first when backward had begun
    bool reduced = false;
    bool released = false;  // resharded since its last use in this backward
  };
  Pass pass;
  ReadProgress reads;
  // Position in the order of first gathers ever, the same on all ranks.
  int64_t first_gather = -1;
  bool gradient_sync = true;
  /// Whether some rank owns nothing of one of its groups.
  [[nodiscard]] bool a_rank_owns_nothing() const {
    return a_rank_owns_nothing_;
  }

  /// When backward frees the full parameters. Learned: a unit that was needed
  /// again after its release is released later in all later passes.
  enum class Release { on_completion, on_switch, at_end };
  Release release = Release::on_completion;

 private:
  void install_hooks();
  /// The name of the full parameter that `tensor` is, or is a view of.
  [[nodiscard]] std::string name_of(const at::Tensor& tensor) const;
  /// Steps now, on the stream of the reductions, if nothing needs this unit any
  /// more in this pass.
  void step_early();
  [[nodiscard]] CallLabel label(std::string_view phase,
                                std::string_view op) const;

  std::string name_;
  ModuleIds modules_;
  ModuleIds covered_;  // sorted
  FullyShardOptions options_;
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::shared_ptr<ShardContext> context_;
  std::shared_ptr<Unit> parent_;
  int num_below_ = 0;
  bool a_rank_owns_nothing_ = false;
  UnitCounts counts_;
  // Parameters whose gradient arrived in this pass, by group.
  std::vector<std::vector<bool>> arrived_;
  size_t num_arrived_ = 0;
  std::vector<std::vector<bool>> reduced_gradients_;

  ForwardClock clock_;
  InputCast cast_;
};

}  // namespace tessera
