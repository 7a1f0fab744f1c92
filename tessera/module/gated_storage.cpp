#include "tessera/module/gated_storage.h"

#include <c10/core/DispatchKeySet.h>

#include <typeinfo>

#include "tessera/base/error.h"

namespace tessera {

namespace {

struct KeyAccess : c10::TensorImpl {
  static auto keys() { return &KeyAccess::key_set_; }
};

}  // namespace

GatedStorage::GatedStorage(size_t num_bytes, at::DataPtr data,
                           c10::Allocator* allocator,
                           std::shared_ptr<StorageOwner> owner,
                           std::shared_ptr<const ShardGuard> guard)
    : StorageImpl(use_byte_size_t(), num_bytes, std::move(data), allocator,
                  /*resizable=*/false),
      owner_(std::move(owner)),
      guard_(std::move(guard)) {}

GatedStorage::~GatedStorage() {
  if (slot_) *slot_ = nullptr;
}

GatedStorage* gated_storage_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kGateKey) || !impl->has_storage()) return nullptr;
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  // Exact type: the class is final, and this is cheaper than dynamic_cast.
  return storage && typeid(*storage) == typeid(GatedStorage)
             ? static_cast<GatedStorage*>(storage)
             : nullptr;
}

void note_write_below_gate(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage()) return;
  // local() has taken the gate's key off.
  const auto* storage = dynamic_cast<const GatedStorage*>(
      impl->unsafe_storage().unsafeGetStorageImpl());
  if (!storage || !storage->guard()) return;
  storage->guard()->note_write();
  if (impl->version_counter().enabled()) {
    c10::VariableVersion(impl->version_counter()).bump();
  }
}

void add_gate_key(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->*KeyAccess::keys() = impl->key_set().add(kGateKey);
}

at::Tensor tensor_over(c10::StorageImpl* storage, c10::ScalarType dtype,
                       int64_t offset, at::IntArrayRef sizes,
                       at::IntArrayRef strides) {
  auto owned = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
  const auto key = storage->device_type() == c10::kCUDA
                       ? c10::BackendComponent::CUDABit
                       : c10::BackendComponent::CPUBit;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(owned)),
      c10::DispatchKeySet(c10::DispatchKey::Dense) | c10::DispatchKeySet(key),
      c10::scalarTypeToTypeMeta(dtype));
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.empty()) {
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides);
  }
  return tensor;
}

void ShardGuard::refuse(const char* op, const at::Tensor& tensor) const {
  const int64_t offset = tensor.storage_offset();
  std::string name = "?";
  for (const Named& named : names_) {
    // An empty shard may lie where another one begins.
    const bool here =
        named.numel > 0
            ? offset >= named.offset && offset < named.offset + named.numel
            : offset == named.offset && tensor.numel() == 0;
    if (here) name = named.name;
  }
  throw Unsupported(
      str(op, " on the ", what_, " of parameter '", name,
          "' would see this rank's part only. parameters() holds shards: use "
          "clip_grad_norm_ for norms, materialize or a FullParameters scope for "
          "initialisers and statistics, the module's typed member for the full "
          "parameter, or local(shard) if this rank's part is meant. Optimizers "
          "that are not elementwise (LBFGS) are not supported."));
}

}  // namespace tessera
