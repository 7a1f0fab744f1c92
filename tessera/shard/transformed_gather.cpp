#include "tessera/shard/transformed_gather.h"

#include <ATen/ops/empty.h>

#include <span>
#include <utility>

namespace tessera {

std::vector<GatherCall> TransformedGather::begin(const GroupPlan& plan,
                                                 const at::Tensor& master) {
  const int64_t ranks = plan.layout.world_size();
  std::vector<GatherCall> calls;
  for (const FlatBuffer& buffer : plan.layout.buffers()) {
    const at::Tensor part =
        master.narrow(0, buffer.shard_offset, buffer.shard_numel)
            .to(plan.lanes->device, /*non_blocking=*/true);
    const auto sent =
        plan.options.transform->pre_gather(part, buffer.row_numel);
    for (const at::Tensor& mine : sent) {
      if (ranks == 1) {
        wire_.push_back(mine);
        continue;
      }
      wire_.push_back(at::empty({mine.numel() * ranks}, mine.options()));
      calls.push_back({wire_.back(), mine});
    }
    counts_.push_back(sent.size());
  }
  return calls;
}

void TransformedGather::finish(const GroupPlan& plan,
                               const at::Tensor& full_flat) {
  const auto wire = std::exchange(wire_, {});
  const auto counts = std::exchange(counts_, {});
  size_t next = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const FlatBuffer& buffer = plan.layout.buffers()[i];
    plan.options.transform->post_gather(
        std::span(wire).subspan(next, counts[i]), buffer.row_numel,
        full_flat.narrow(0, buffer.full_offset,
                         buffer.shard_numel * plan.layout.world_size()));
    next += counts[i];
  }
}

}  // namespace tessera
