#include "tessera/tensor/spread.h"

#include <ATen/ops/empty.h>

#include "tessera/device/capture.h"
#include "tessera/module/gated_storage.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

at::Tensor FlatMaster::grad() const {
  auto storage = grad_storage_.lock();
  if (!storage) return {};
  return tensor_over(storage.get(), data.scalar_type(), 0, data.sizes());
}

void FlatMaster::set_grad(const at::Tensor& grad) {
  grad_storage_ = c10::weak_intrusive_ptr<c10::StorageImpl>(
      grad.defined() ? grad.storage().getWeakStorageImpl().lock()
                     : c10::intrusive_ptr<c10::StorageImpl>());
}

namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

bool FlatMaster::copy_is_current() const {
  return copy.defined() && copy_version_ == version_of(data);
}

void FlatMaster::ensure_copy(c10::ScalarType dtype) {
  if (copy.defined()) return;
  copy = at::empty(data.sizes(), data.options().dtype(dtype));
}

void FlatMaster::refresh_copy() {
  if (!copy.defined() || copy_is_current()) return;
  copy.copy_(data, /*non_blocking=*/true);
  // A captured cast runs with the replays, if there will be any.
  if (!capturing(data.device())) note_copy_is_current();
}

void FlatMaster::note_copy_is_current() { copy_version_ = version_of(data); }

const Spread* spread_of(const at::Tensor& parameter) {
  const ShardImpl* impl = shard_impl_of(parameter);
  return impl ? impl->spread().get() : nullptr;
}

at::Tensor local(const at::Tensor& shard) {
  GatedStorage* storage = gated_storage_of(shard);
  if (!storage || !storage->guard()) return shard;
  at::Tensor alias =
      tensor_over(storage, shard.scalar_type(), 0, at::IntArrayRef{0});
  auto* impl = alias.unsafeGetTensorImpl();
  impl->set_storage_offset(shard.storage_offset());
  impl->set_sizes_and_strides(shard.sizes(), shard.strides());
  impl->set_version_counter(shard.unsafeGetTensorImpl()->version_counter());
  return alias;
}

}  // namespace tessera
