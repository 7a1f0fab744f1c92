#include "tessera/tensor/spread.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "tessera/device/capture.h"
#include "tessera/module/gated_storage.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

/// What local() gives: `.data()` of it keeps the version counter, as a shard's
/// does, so that writes through it are noticed.
class LocalImpl final : public c10::TensorImpl {
 public:
  using TensorImpl::TensorImpl;

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion&,
      bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(),
                                               allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&&,
      bool allow_tensor_metadata_change) const override {
    return TensorImpl::shallow_copy_and_detach(version_counter(),
                                               allow_tensor_metadata_change);
  }
};

/// `make`'s result, with this version counter, which a tensor made in inference
/// mode cannot have.
template <class Make>
at::Tensor sharing(const c10::VariableVersion& version, const Make& make) {
  const c10::InferenceMode normal(false);
  at::Tensor tensor = make();
  tensor.unsafeGetTensorImpl()->set_version_counter(version);
  return tensor;
}

}  // namespace

at::Tensor FlatMaster::grad() const {
  return grad_storage_.expired() ? at::Tensor()
                                 : grad_part(0, data.sizes(), {});
}

at::Tensor FlatMaster::grad_part(int64_t offset, at::IntArrayRef sizes,
                                 at::IntArrayRef strides) const {
  const auto storage = grad_storage_.lock();
  TORCH_INTERNAL_ASSERT(storage, "the flat gradient is gone");
  return sharing(grad_version_, [&] {
    return tensor_over(storage.get(), data.scalar_type(), offset, sizes,
                       strides);
  });
}

void FlatMaster::set_grad(const at::Tensor& grad) {
  forget_grad_norms();
  grad_version_ = c10::VariableVersion(/*version=*/0);
  grad_storage_ =
      WeakStorage(grad.defined() ? grad.storage().getWeakStorageImpl().lock()
                                 : c10::intrusive_ptr<c10::StorageImpl>());
}

FlatMaster::GradState FlatMaster::grad_state() const {
  const auto storage = grad_storage_.lock();
  const auto* gated = dynamic_cast<const GatedStorage*>(storage.get());
  return {.version = grad_version_.current_version(),
          .gated_writes =
              gated && gated->guard() ? gated->guard()->num_writes() : 0,
          .captured = capturing(data.device())};
}

void FlatMaster::keep_grad_norms(std::vector<NormsOfPart> norms) {
  grad_norms_ = std::move(norms);
  grad_norms_state_ = grad_state();
}

std::vector<at::Tensor> FlatMaster::grad_norms(const FlatPiece& part) const {
  if (grad_norms_.empty() || grad_storage_.expired() ||
      grad_norms_state_ != grad_state()) {
    return {};
  }
  const auto kept = std::find_if(
      grad_norms_.begin(), grad_norms_.end(), [&](const NormsOfPart& own) {
        return own.part.offset == part.offset && own.part.numel == part.numel;
      });
  return kept == grad_norms_.end() ? std::vector<at::Tensor>() : kept->norms;
}

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
  return sharing(shard.unsafeGetTensorImpl()->version_counter(), [&] {
    const at::Tensor plain =
        tensor_over(storage, shard.scalar_type(), 0, at::IntArrayRef{0});
    at::Tensor alias = at::detail::make_tensor<LocalImpl>(
        c10::Storage(plain.storage()), plain.key_set(), plain.dtype());
    auto* impl = alias.unsafeGetTensorImpl();
    impl->set_storage_offset(shard.storage_offset());
    impl->set_sizes_and_strides(shard.sizes(), shard.strides());
    return alias;
  });
}

}  // namespace tessera
