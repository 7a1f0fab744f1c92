// The parameters of a unit that travel in one buffer, in their three forms: the
// shards (shard_set.h), the full parameters (full_buffer.h) and the gradients
// (gradient_buffer.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/shard/full_buffer.h"
#include "tessera/shard/gradient_buffer.h"
#include "tessera/shard/group_plan.h"
#include "tessera/shard/shard_set.h"

namespace tessera {

class ParameterGroup {
 public:
  /// Plans the layout and cuts this rank's part out of `parameters`' values
  /// (meta parameters have none). Changes no parameter yet.
  ParameterGroup(std::vector<FoundParameter> parameters,
                 std::vector<int64_t> dims, const GroupOptions& options,
                 std::shared_ptr<const ShardLanes> lanes);

  /// The step that cannot be undone: points the full parameters at this group's
  /// storage, which `owner` (the unit) answers for.
  void take_over(const std::shared_ptr<StorageOwner>& owner);

  [[nodiscard]] const std::shared_ptr<const ShardLanes>& lanes() const {
    return plan_->lanes;
  }
  void set_lanes(std::shared_ptr<const ShardLanes> lanes) {
    plan_->lanes = std::move(lanes);
  }
  void set_all_gather(std::shared_ptr<AllGather> all_gather) {
    plan_->all_gather = std::move(all_gather);
  }
  void set_reduce_scatter(std::shared_ptr<ReduceScatter> reduce_scatter) {
    plan_->reduce_scatter = std::move(reduce_scatter);
  }

  [[nodiscard]] size_t size() const { return shards_.size(); }
  [[nodiscard]] const GroupOptions& options() const { return plan_->options; }
  [[nodiscard]] const FlatLayout& layout() const { return plan_->layout; }
  [[nodiscard]] const std::vector<int64_t>& sizes(size_t i) const {
    return plan_->sizes[i];
  }
  [[nodiscard]] const std::string& name(size_t i) const {
    return shards_.name(i);
  }
  void rename(size_t i, const std::string& name) { shards_.rename(i, name); }
  [[nodiscard]] int64_t full_bytes() const { return plan_->full_bytes(); }
  /// Whether some rank owns no element of this group: it may not notice that
  /// the others' shards were written.
  [[nodiscard]] bool a_rank_owns_nothing() const;

  [[nodiscard]] const at::Tensor& shard(size_t i) const { return shards_[i]; }
  [[nodiscard]] const std::shared_ptr<FlatMaster>& master() const {
    return shards_.master();
  }
  [[nodiscard]] bool has_values() const { return shards_.has_values(); }
  /// Takes this rank's part of whole parameters as the new shards.
  void store(const std::vector<at::Tensor>& whole) { shards_.store(whole); }

  [[nodiscard]] FullBuffer& full_buffer() { return full_; }
  [[nodiscard]] const FullBuffer& full_buffer() const { return full_; }
  /// The full parameter, or an undefined tensor when its module is gone.
  [[nodiscard]] at::Tensor full(size_t i) const { return full_.parameter(i); }
  [[nodiscard]] bool gathered() const { return full_.gathered(); }
  /// Whether a shard was written since the last gather.
  [[nodiscard]] bool stale() const {
    return full_.gathered_version() != shards_.version();
  }

  [[nodiscard]] GradientBuffer& gradients() { return gradients_; }
  [[nodiscard]] const GradientBuffer& gradients() const { return gradients_; }
  [[nodiscard]] bool trainable(size_t i) const {
    return shards_[i].requires_grad();
  }
  /// Parameters that can get a gradient.
  [[nodiscard]] size_t num_trainable() const;

 private:
  std::vector<FoundParameter> before_;  // until take_over
  std::shared_ptr<GroupPlan> plan_;
  ShardSet shards_;
  FullBuffer full_;
  GradientBuffer gradients_;
};

}  // namespace tessera
