#include "tessera/module/meta_memory.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <limits>

#include "tessera/module/gate.h"

namespace tessera {

namespace {

struct ImplAccess : c10::TensorImpl {
  static auto device() { return &ImplAccess::device_opt_; }
};

at::Scalar unset_value(const at::Tensor& tensor) {
  if (tensor.is_floating_point() || tensor.is_complex()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (tensor.scalar_type() == at::kLong) {
    return std::numeric_limits<int64_t>::min();
  }
  return 0;  // bool and small integers have no value to spare
}

}  // namespace

void leave_meta(const at::Tensor& tensor, c10::StorageImpl* storage) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->_change_backend_component_keys(storage->device());
  impl->set_storage_keep_dtype(c10::Storage(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  impl->*ImplAccess::device() = storage->device();
}

void fill_unset(const at::Tensor& tensor) {
  if (tensor.numel() > 0) tensor.fill_(unset_value(tensor));
}

bool is_unset(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  if (tensor.is_floating_point() || tensor.is_complex()) {
    return tensor.isnan().any().item<bool>();
  }
  return tensor.scalar_type() == at::kLong &&
         tensor.eq(unset_value(tensor)).any().item<bool>();
}

void give_unset_memory(const at::Tensor& tensor, c10::Device device) {
  torch::NoGradGuard no_grad;
  GateOff off;
  const at::Tensor real = at::empty(
      tensor.sizes(), at::TensorOptions(tensor.scalar_type()).device(device));
  fill_unset(real);
  leave_meta(tensor, real.storage().unsafeGetStorageImpl());
  at::Tensor(tensor).set_data(real);
}

}  // namespace tessera
