// The full parameters of a group, as views of one storage whose memory comes
// and goes.
//
//   master (flat shard) --gather--> full parameters
//
// The master is cast straight into this rank's slot of the buffer, which is
// gathered in place; full parameters are views of it: no copy-in, no copy-out.
//
// The storage keeps its identity for life; its memory comes and goes (null
// pointer, unchanged size, so that views still build). Saved tensors of
// autograd therefore see the gathered-again data, and no version counter moves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/device/stream.h"
#include "tessera/shard/group_plan.h"
#include "tessera/shard/shard_set.h"
#include "tessera/shard/transformed_gather.h"

namespace tessera {

class FullBuffer {
 public:
  /// `shards` must outlive it.
  FullBuffer(std::shared_ptr<const GroupPlan> plan, ShardSet& shards);
  ~FullBuffer();
  FullBuffer(const FullBuffer&) = delete;
  FullBuffer& operator=(const FullBuffer&) = delete;

  /// Points the parameters at the storage, which `owner` (the unit) answers
  /// for, and puts the shards into the modules in their place.
  void take_over(const std::vector<FoundParameter>& parameters,
                 const std::shared_ptr<StorageOwner>& owner);

  /// The full parameter, or an undefined tensor when its module is gone.
  [[nodiscard]] at::Tensor parameter(size_t i) const;
  [[nodiscard]] bool has_parameter(size_t i) const {
    return !full_[i].expired();
  }

  /// Where a gather takes the values from: all ranks' masters, or the parts
  /// that `reshard_to_keepers` left (the masters when it left none).
  enum class From { masters, keepers };
  /// Starts the gather. `finish_gather` must follow before they are read.
  void start_gather(From from, const CallLabel& label);
  void finish_gather();
  [[nodiscard]] bool gathered() const { return state_ != State::sharded; }
  [[nodiscard]] bool gathering() const { return state_ == State::gathering; }
  /// The shards' version at the last gather, if there was one.
  [[nodiscard]] std::optional<uint32_t> gathered_version() const {
    return gathered_version_;
  }
  /// Frees the memory.
  void reshard();
  /// Frees it but for this rank's part of what the keepers keep together.
  void reshard_to_keepers();

  /// All of it in the master's dtype, as a tensor for each parameter over fresh
  /// memory: gathered, or NaN with Values::unset or when there are no values.
  enum class Values { gathered, unset };
  [[nodiscard]] std::vector<at::Tensor> whole(Values values,
                                              const CallLabel& label);
  /// Puts back the full parameter's own view, after `whole` was shown in its
  /// place.
  void point_at_storage(size_t i) const;

 private:
  enum class State { sharded, gathering, gathered };

  [[nodiscard]] bool aliases_master() const;
  [[nodiscard]] bool kept_by_keepers() const;
  void check_members() const;
  void allocate();
  [[nodiscard]] at::Tensor full_flat() const;
  /// `source`: laid out as the master.
  [[nodiscard]] std::vector<GatherCall> gather_calls(
      const at::Tensor& full_flat, const at::Tensor& source) const;
  [[nodiscard]] bool is_cast_on_its_way(const at::Tensor& source,
                                        c10::ScalarType to) const;
  [[nodiscard]] std::vector<GatherCall> keeper_calls(
      const at::Tensor& full_flat, const at::Tensor& kept) const;
  Pending all_gather(const std::vector<GatherCall>& calls, Communicator& over,
                     const CallLabel& label);
  Pending start_collective(From from, const CallLabel& label);

  std::shared_ptr<const GroupPlan> plan_;
  ShardSet& shards_;
  std::vector<
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>
      full_;
  c10::StorageImpl* storage_ = nullptr;  // null once all full parameters died
  State state_ = State::sharded;
  std::optional<uint32_t> gathered_version_;
  at::Tensor kept_;  // 1-D: this rank's part of each buffer, one after another
  uint32_t kept_version_ = 0;
  TransformedGather transformed_;
  Pending gather_;
  StreamEvent gather_issued_;
  StreamEvent gather_done_;
};

}  // namespace tessera
