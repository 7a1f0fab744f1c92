#include <ATen/ops/zeros.h>

#include <utility>

#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"
#include "tessera/shard/full_buffer.h"

// The full parameters over memory of their own.

namespace tessera {

std::vector<at::Tensor> FullBuffer::whole(Values values,
                                          const CallLabel& label) {
  Below below;
  const at::Tensor flat =
      at::zeros({plan_->layout.full_numel()},
                shards_.master()->data.options().device(plan_->lanes->device));
  if (values == Values::gathered && shards_.has_values()) {
    shards_.adopt_replaced();
    const auto calls = gather_calls(flat, shards_.master()->data);
    if (plan_->layout.world_size() > 1) {
      all_gather(calls, *plan_->lanes->gather, label).wait();
    }
  } else {
    fill_unset(flat);
  }
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < plan_->sizes.size(); ++i) {
    const auto& place = plan_->layout.parameters()[i];
    at::Tensor view = tensor_over(
        flat.storage().unsafeGetStorageImpl(), plan_->options.master_dtype,
        place.full_offset, plan_->sizes[i], plan_->full_strides(i));
    // What fills a tensor in the order of its memory (random numbers) must not
    // depend on how it is cut.
    if (!view.is_contiguous()) {
      const at::Tensor copy = view.contiguous();
      view = tensor_over(copy.storage().unsafeGetStorageImpl(),
                         plan_->options.master_dtype, 0, plan_->sizes[i]);
    }
    tensors.push_back(std::move(view));
  }
  return tensors;
}

}  // namespace tessera
