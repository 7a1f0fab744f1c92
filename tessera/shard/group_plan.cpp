#include "tessera/shard/group_plan.h"

#include <utility>

namespace tessera {

GroupPlan::GroupPlan(const std::vector<FoundParameter>& parameters,
                     const GroupOptions& group_options,
                     std::shared_ptr<const ShardLanes> group_lanes)
    : options(group_options), lanes(std::move(group_lanes)) {
  for (const auto& found : parameters) {
    sizes.push_back(found.tensor.sizes().vec());
  }
  const int64_t parts = options.strategy == Strategy::shard ? lanes->size() : 1;
  layout = plan_flat_layout(
      sizes, {.world_size = parts,
              .compute_bytes =
                  static_cast<int64_t>(c10::elementSize(options.compute_dtype)),
              .reduce_bytes = static_cast<int64_t>(
                  c10::elementSize(options.reduce_dtype))});
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.push_back(layout.piece(i, layout_rank()));
  }
}

int64_t GroupPlan::layout_rank() const {
  return options.strategy == Strategy::shard ? lanes->rank() : 0;
}

std::vector<int64_t> GroupPlan::shard_sizes(size_t i) const {
  std::vector<int64_t> shard = sizes[i];
  shard[0] = pieces[i].num_rows;
  return shard;
}

int64_t GroupPlan::full_bytes() const {
  return layout.full_numel() *
         static_cast<int64_t>(c10::elementSize(options.compute_dtype));
}

}  // namespace tessera
