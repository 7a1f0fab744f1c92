#include "tessera/tensor/shard_tensor.h"

#include <torch/csrc/autograd/grad_mode.h>

#include <typeinfo>

#include "tessera/base/error.h"
#include "tessera/module/gate.h"

namespace tessera {

c10::intrusive_ptr<c10::TensorImpl> ShardImpl::shallow_copy_and_detach(
    const c10::VariableVersion&, bool allow_tensor_metadata_change) const {
  return TensorImpl::shallow_copy_and_detach(version_counter(),
                                             allow_tensor_metadata_change);
}

c10::intrusive_ptr<c10::TensorImpl> ShardImpl::shallow_copy_and_detach(
    c10::VariableVersion&&, bool allow_tensor_metadata_change) const {
  return TensorImpl::shallow_copy_and_detach(version_counter(),
                                             allow_tensor_metadata_change);
}

void ShardImpl::shallow_copy_from(
    const c10::intrusive_ptr<c10::TensorImpl>& from) {
  require<InvalidArgument>(
      from->sizes() == sizes() && from->dtype() == dtype() &&
          from->device() == device(),
      [&] {
        return str("parameter '", spread_->name,
                   "' is sharded: this rank's "
                   "shard is ",
                   sizes(), " ", dtype().name(), " on ", device(),
                   " and cannot take data that is ", from->sizes(), " ",
                   from->dtype().name(), " on ", from->device(),
                   ". Convert or move the module before fully_shard, and load "
                   "whole parameters inside a FullParameters scope.");
      });
  torch::NoGradGuard no_grad;
  const auto self = c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(this);
  local(at::Tensor(self)).copy_(local(at::Tensor(from)));
}

ShardImpl* shard_impl_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  auto* impl = tensor.unsafeGetTensorImpl();
  return typeid(*impl) == typeid(ShardImpl) ? static_cast<ShardImpl*>(impl)
                                            : nullptr;
}

namespace {

void set_sizes(c10::TensorImpl& impl, const Spread& spread,
               at::IntArrayRef sizes) {
  if (spread.strides.empty()) {
    impl.set_sizes_contiguous(sizes);
  } else {
    impl.set_sizes_and_strides(sizes, spread.strides);
  }
}

}  // namespace

at::Tensor make_shard(std::shared_ptr<Spread> given, at::IntArrayRef sizes) {
  const Spread& spread = *given;
  const at::Tensor& flat = spread.master->data;
  at::Tensor shard = at::detail::make_tensor<ShardImpl>(
      c10::Storage(flat.storage()), flat.key_set(), flat.dtype(),
      std::move(given));
  auto* impl = shard.unsafeGetTensorImpl();
  impl->set_storage_offset(spread.piece.offset);
  set_sizes(*impl, spread, sizes);
  impl->set_version_counter(flat.unsafeGetTensorImpl()->version_counter());
  add_gate_key(shard);
  return shard;
}

void restore_shard(ShardImpl& shard, at::IntArrayRef sizes) {
  const at::Tensor& flat = shard.spread()->master->data;
  shard.set_storage_keep_dtype(flat.storage());
  shard.set_storage_offset(shard.spread()->piece.offset);
  set_sizes(shard, *shard.spread(), sizes);
  shard.set_version_counter(flat.unsafeGetTensorImpl()->version_counter());
}

}  // namespace tessera
