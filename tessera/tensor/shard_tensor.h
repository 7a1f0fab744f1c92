// The tensor that `parameters()` hands out after fully_shard.
//
// A shard is a leaf like any parameter, with three habits of its own:
//  - `.data()` and `detach()` keep its version counter, so that writes through
//    them (stock SGD does that) are noticed by the next gather;
//  - what would give it other data (`set_data`, `module->to(...)`) copies into
//    place, or is refused with names and shapes;
//  - it carries a Spread, and is gated: what would be silently local raises.
#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>

#include "tessera/module/gated_storage.h"
#include "tessera/tensor/spread.h"

namespace tessera {

class ShardImpl final : public c10::TensorImpl {
 public:
  ShardImpl(c10::Storage&& storage, c10::DispatchKeySet keys,
            caffe2::TypeMeta dtype, std::shared_ptr<Spread> spread)
      : TensorImpl(std::move(storage), keys, dtype),
        spread_(std::move(spread)) {}

  [[nodiscard]] const std::shared_ptr<Spread>& spread() const {
    return spread_;
  }

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter,
      bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter,
      bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(
      const c10::intrusive_ptr<c10::TensorImpl>& from) override;

 private:
  std::shared_ptr<Spread> spread_;
};

/// The ShardImpl under `tensor`, or null. Views of a shard are not shards.
[[nodiscard]] ShardImpl* shard_impl_of(const at::Tensor& tensor);

/// Makes the shard that `spread` describes: a leaf without gradient, over
/// `spread->master->data`'s storage (a GatedStorage), sharing its version
/// counter.
[[nodiscard]] at::Tensor make_shard(std::shared_ptr<Spread> spread,
                                    at::IntArrayRef sizes);

/// Puts a shard whose storage was replaced from outside back in its place.
void restore_shard(ShardImpl& shard, at::IntArrayRef sizes);

}  // namespace tessera
