// The parameters of a unit that travel in one buffer: their memory in its forms,
// and the collectives between the forms.
//
//   master (flat shard) --gather--> full parameters (views of one storage)
//   gradients (whole)   --reduce--> flat gradient, a piece for each shard's .grad
//
// Gather: the master is cast straight into this rank's slot of the full buffer,
// which is gathered in place; full parameters are views of it: no copy-in, no
// copy-out. Reduce: gradients land in the reduce input at their final offsets;
// the output *is* the flat gradient.
//
// The storage keeps its identity for life; its memory comes and goes (null
// pointer, unchanged size, so that views still build). Saved tensors of autograd
// therefore see the gathered-again data, and no version counter moves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/device/stream.h"
#include "tessera/module/gated_storage.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/flat_layout.h"
#include "tessera/shard/options.h"
#include "tessera/tensor/spread.h"

namespace tessera {

/// The communicators and streams that all groups of one mesh share.
struct ShardLanes {
  std::shared_ptr<Communicator> gather;
  std::shared_ptr<Communicator> reduce;
  std::shared_ptr<Communicator> control;
  c10::Device device = c10::kCPU;
  c10::Stream gather_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  c10::Stream reduce_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};

  [[nodiscard]] int rank() const { return gather->rank(); }
  [[nodiscard]] int size() const { return gather->size(); }
};

/// How the parameters of a unit are spread over the ranks of its mesh.
enum class Strategy {
  shard,      // each rank owns a part; gather and reduce-scatter
  replicate,  // each rank owns all; all-reduce of the gradients
};

struct GroupOptions {
  Strategy strategy = Strategy::shard;
  c10::ScalarType master_dtype = c10::kFloat;
  c10::ScalarType compute_dtype = c10::kFloat;
  c10::ScalarType reduce_dtype = c10::kFloat;
  Debug debug = Debug::none;
};

class ParameterGroup {
 public:
  /// Plans the layout and cuts this rank's part out of `parameters`' values
  /// (meta parameters have none). Changes no parameter yet.
  ParameterGroup(std::vector<FoundParameter> parameters,
                 const GroupOptions& options,
                 std::shared_ptr<const ShardLanes> lanes);
  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  /// The step that cannot be undone: points the full parameters at this group's
  /// storage, which `owner` (the unit) answers for.
  void take_over(const std::shared_ptr<StorageOwner>& owner);

  [[nodiscard]] size_t size() const { return shards_.size(); }
  [[nodiscard]] const GroupOptions& options() const { return options_; }
  [[nodiscard]] const FlatLayout& layout() const { return layout_; }
  [[nodiscard]] const at::Tensor& shard(size_t i) const { return shards_[i]; }
  /// The full parameter, or an undefined tensor when its module is gone.
  [[nodiscard]] at::Tensor full(size_t i) const;
  void set_lanes(std::shared_ptr<const ShardLanes> lanes) {
    lanes_ = std::move(lanes);
  }
  [[nodiscard]] const std::string& name(size_t i) const;
  void rename(size_t i, const std::string& name);
  [[nodiscard]] const std::vector<int64_t>& sizes(size_t i) const {
    return sizes_[i];
  }
  [[nodiscard]] const std::shared_ptr<FlatMaster>& master() const {
    return master_;
  }
  /// Moves when any shard of the group is written.
  [[nodiscard]] uint32_t version() const;
  [[nodiscard]] int64_t full_bytes() const;

  // Full parameters -------------------------------------------------------

  /// Starts the gather. `finish_gather` must follow before they are read.
  void start_gather(const CallLabel& label);
  void finish_gather();
  [[nodiscard]] bool gathered() const { return state_ != State::sharded; }
  /// Whether a shard was written since the gather.
  [[nodiscard]] bool stale() const { return gathered_version_ != version(); }
  /// Whether some rank owns no element of this group: it may not notice that the
  /// others' shards were written.
  [[nodiscard]] bool a_rank_owns_nothing() const;
  [[nodiscard]] std::optional<uint32_t> gathered_version() const {
    return gathered_version_;
  }
  /// Frees the full parameters' memory.
  void reshard();

  /// Whether the parameters have values: not when built on the meta device and
  /// not materialized yet.
  [[nodiscard]] bool has_values() const { return has_values_; }

  /// All of it in the master's dtype, as a tensor for each parameter over fresh
  /// memory: gathered, or NaN with Values::unset or when there are no values.
  enum class Values { gathered, unset };
  [[nodiscard]] std::vector<at::Tensor> whole(Values values,
                                              const CallLabel& label);
  /// Takes this rank's part of such tensors as the new shards.
  void store(const std::vector<at::Tensor>& whole);
  /// The full parameters' own tensor views, to put back after `whole` was shown
  /// in their place.
  void point_full_at_storage(size_t i) const;

  // Gradients -------------------------------------------------------------

  /// Adds a gradient of parameter `i` (whole, any dtype, dense).
  void hold_gradient(size_t i, at::Tensor grad);
  [[nodiscard]] bool holds_gradients() const { return num_held_ > 0; }
  [[nodiscard]] bool holds_gradient(size_t i) const {
    return held_[i].defined();
  }
  /// Brings the held gradients to the reduce dtype: they stay until a later
  /// backward reduces them.
  void settle_held_gradients();
  void drop_gradients();

  /// Starts the sum over ranks of what is held; zeros where nothing is.
  void start_reduce(const CallLabel& label);
  /// Lets go of the inputs of sums started earlier, so that one is in flight.
  void free_reduce_inputs();
  /// Waits for all sums started, and adds them to the shards' gradients, for the
  /// parameters for which `had_gradient` says so.
  void finish_reduce(const std::vector<bool>& had_gradient);
  /// Waits for sums in flight and drops them.
  void abandon_reduce() noexcept;

  [[nodiscard]] bool trainable(size_t i) const {
    return shards_[i].requires_grad();
  }
  [[nodiscard]] size_t num_trainable() const;

 private:
  enum class State { sharded, gathering, gathered };
  struct Reduction {
    Pending pending;
    at::Tensor input;
    at::Tensor output;
    StreamEvent done;
  };

  [[nodiscard]] int64_t layout_rank() const;
  [[nodiscard]] bool aliases_master() const;
  void make_master(const std::vector<FoundParameter>& parameters);
  void make_shards(const std::vector<FoundParameter>& parameters);
  void adopt_replaced_shards();
  void check_members() const;
  void allocate_full();
  [[nodiscard]] std::vector<GatherCall> gather_calls(
      const at::Tensor& full_flat) const;
  void fill_reduce_input(const at::Tensor& input);
  void divide(const at::Tensor& reduced) const;
  [[nodiscard]] at::Tensor new_flat_grad(const at::Tensor& input) const;
  void give_gradients(const at::Tensor& output,
                      const std::vector<bool>& had_gradient);
  void run_shard_pre_hooks(const at::Tensor& reduced,
                           const std::vector<bool>& had_gradient);
  [[nodiscard]] at::Tensor guarded_copy(size_t i, const at::Tensor& piece) const;
  void run_shard_hooks(const std::vector<bool>& had_gradient);
  [[nodiscard]] at::Tensor take_as_flat_grad(const at::Tensor& reduced);
  void add_to_flat_grad(const at::Tensor& flat, const at::Tensor& reduced);
  [[nodiscard]] bool grad_in_place(size_t i, const at::Tensor& flat) const;
  void give_gradient(size_t i, const at::Tensor& flat,
                     const at::Tensor& reduced);

  GroupOptions options_;
  std::shared_ptr<const ShardLanes> lanes_;
  FlatLayout layout_;
  std::shared_ptr<FlatMaster> master_;
  std::shared_ptr<ShardGuard> guard_;
  std::shared_ptr<ShardGuard> grad_guard_;
  std::vector<std::vector<int64_t>> sizes_;
  std::vector<LocalPiece> pieces_;
  std::vector<std::shared_ptr<Spread>> spreads_;
  std::vector<at::Tensor> shards_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl,
                                      c10::UndefinedTensorImpl>>
      full_;
  std::vector<FoundParameter> before_;  // until take_over
  c10::StorageImpl* storage_ = nullptr;  // null once all full parameters died

  bool has_values_ = true;
  State state_ = State::sharded;
  std::optional<uint32_t> gathered_version_;
  Pending gather_;
  StreamEvent gather_issued_;
  StreamEvent gather_done_;

  std::vector<at::Tensor> held_;
  size_t num_held_ = 0;
  std::vector<Reduction> reductions_;
};

}  // namespace tessera
