#include "tessera/shard/parameter_group.h"

#include <utility>

namespace tessera {

ParameterGroup::ParameterGroup(std::vector<FoundParameter> parameters,
                               std::vector<int64_t> dims,
                               const GroupOptions& options,
                               std::shared_ptr<const ShardLanes> lanes)
    : before_(std::move(parameters)),
      plan_(std::make_shared<GroupPlan>(before_, std::move(dims), options,
                                        std::move(lanes))),
      shards_(before_, plan_),
      full_(plan_, shards_),
      gradients_(plan_, shards_) {}

void ParameterGroup::take_over(const std::shared_ptr<StorageOwner>& owner) {
  full_.take_over(std::exchange(before_, {}), owner);
}

bool ParameterGroup::a_rank_owns_nothing() const {
  for (int64_t rank = 0; rank < layout().world_size(); ++rank) {
    int64_t numel = 0;
    for (size_t i = 0; i < size(); ++i) numel += layout().piece(i, rank).numel;
    if (numel == 0) return true;
  }
  return false;
}

size_t ParameterGroup::num_trainable() const {
  size_t count = 0;
  for (size_t i = 0; i < size(); ++i) {
    // A parameter whose full tensor is gone (its member was tied to another)
    // gets no gradient any more.
    if (trainable(i) && full_.has_parameter(i)) ++count;
  }
  return count;
}

}  // namespace tessera
