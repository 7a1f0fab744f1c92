// This rank's part of a group: the flat master and the shards over it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/module/gated_storage.h"
#include "tessera/module/traversal.h"
#include "tessera/shard/group_plan.h"
#include "tessera/tensor/spread.h"

namespace tessera {

class ShardSet {
 public:
  /// Cuts this rank's part out of the parameters' values; meta parameters have
  /// none.
  ShardSet(const std::vector<FoundParameter>& parameters,
           std::shared_ptr<const GroupPlan> plan);

  [[nodiscard]] size_t size() const { return shards_.size(); }
  [[nodiscard]] const at::Tensor& operator[](size_t i) const {
    return shards_[i];
  }
  [[nodiscard]] const std::shared_ptr<FlatMaster>& master() const {
    return master_;
  }
  [[nodiscard]] const std::shared_ptr<ShardGuard>& grad_guard() const {
    return grad_guard_;
  }
  [[nodiscard]] const std::string& name(size_t i) const {
    return spreads_[i]->name;
  }
  void rename(size_t i, const std::string& name);
  void set_owner(size_t i, const std::shared_ptr<StorageOwner>& owner) {
    spreads_[i]->owner = owner;
  }

  /// Moves when any shard is written.
  [[nodiscard]] uint32_t version() const;
  /// Whether the parameters have values: not when built on the meta device and
  /// not materialized yet.
  [[nodiscard]] bool has_values() const { return has_values_; }

  /// Takes over the values of shards that were given another storage.
  /// Errors: InvalidState when they do not fit.
  void adopt_replaced();

  /// Takes this rank's part of whole parameters, in the master's dtype.
  void store(const std::vector<at::Tensor>& whole);

 private:
  void make_master(const std::vector<FoundParameter>& parameters);
  void make_shards(const std::vector<FoundParameter>& parameters);

  std::shared_ptr<const GroupPlan> plan_;
  std::shared_ptr<FlatMaster> master_;
  std::shared_ptr<ShardGuard> guard_;
  std::shared_ptr<ShardGuard> grad_guard_;
  std::vector<std::shared_ptr<Spread>> spreads_;
  std::vector<at::Tensor> shards_;
  bool has_values_ = true;
};

}  // namespace tessera
