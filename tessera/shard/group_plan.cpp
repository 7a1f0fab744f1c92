#include "tessera/shard/group_plan.h"

#include <ATen/Context.h>

#include <algorithm>
#include <utility>

namespace tessera {
namespace {

std::vector<int64_t> dim_first(std::vector<int64_t> sizes, int64_t dim) {
  std::rotate(sizes.begin(), sizes.begin() + dim, sizes.begin() + dim + 1);
  return sizes;
}

// Contiguous with `dim` first, in the order of the tensor's dims.
std::vector<int64_t> strides_with_first(const std::vector<int64_t>& sizes,
                                        int64_t dim) {
  if (dim == 0) return {};
  const std::vector<int64_t> stored = dim_first(sizes, dim);
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t i = sizes.size() - 1; i > 0; --i) {
    strides[i - 1] = strides[i] * std::max<int64_t>(stored[i], 1);
  }
  std::rotate(strides.begin(), strides.begin() + 1, strides.begin() + dim + 1);
  return strides;
}

}  // namespace

GroupPlan::GroupPlan(const std::vector<FoundParameter>& parameters,
                     std::vector<int64_t> shard_dims,
                     const GroupOptions& group_options,
                     std::shared_ptr<const ShardLanes> group_lanes)
    : options(group_options),
      lanes(std::move(group_lanes)),
      dims(std::move(shard_dims)) {
  std::vector<std::vector<int64_t>> stored;
  for (size_t i = 0; i < parameters.size(); ++i) {
    sizes.push_back(parameters[i].tensor.sizes().vec());
    stored.push_back(dim_first(sizes[i], dims[i]));
  }
  const int64_t parts = options.strategy == Strategy::shard ? lanes->size() : 1;
  layout =
      plan_flat_layout(stored, {.world_size = parts,
                                .compute_bytes = static_cast<int64_t>(
                                    c10::elementSize(options.compute_dtype)),
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
  shard[dims[i]] = pieces[i].num_rows;
  return shard;
}

std::vector<int64_t> GroupPlan::full_strides(size_t i) const {
  return strides_with_first(sizes[i], dims[i]);
}

std::vector<int64_t> GroupPlan::shard_strides(size_t i) const {
  return strides_with_first(shard_sizes(i), dims[i]);
}

at::Tensor GroupPlan::rows_first(size_t i, const at::Tensor& tensor) const {
  return dims[i] == 0 ? tensor : tensor.movedim(dims[i], 0);
}

at::Tensor GroupPlan::piece_of(size_t i, const at::Tensor& flat) const {
  const at::Tensor piece =
      flat.narrow(0, pieces[i].shard_offset, pieces[i].numel)
          .view(dim_first(shard_sizes(i), dims[i]));
  return dims[i] == 0 ? piece : piece.movedim(0, dims[i]);
}

int64_t GroupPlan::full_bytes() const {
  return layout.full_numel() *
         static_cast<int64_t>(c10::elementSize(options.compute_dtype));
}

c10::Device GroupPlan::master_device() const {
  return options.offload ? c10::Device(c10::kCPU) : lanes->device;
}

c10::Allocator* GroupPlan::master_allocator() const {
  if (options.offload && options.offload->pin_memory &&
      !lanes->device.is_cpu()) {
    return at::globalContext().getPinnedMemoryAllocator(lanes->device.type());
  }
  return c10::GetAllocator(master_device().type());
}

}  // namespace tessera
