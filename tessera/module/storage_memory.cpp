#include "tessera/module/storage_memory.h"

#include "tessera/base/error.h"

namespace tessera::internal {

void require_whole_storage(const at::Tensor& value, const char* caller) {
  require<InvalidArgument>(
      value.defined() && value.is_contiguous() && value.storage_offset() == 0 &&
          value.storage().nbytes() == value.nbytes(),
      [&] {
        if (!value.defined()) return str(caller, ": a value is undefined.");
        return str(caller, ": a value of ", value.sizes(), " with strides ",
                   value.strides(),
                   " is not the whole of its storage, in order.");
      });
}

void take_memory(const c10::Storage& storage) {
  storage.set_data_ptr(c10::DataPtr(nullptr, storage.device()));
}

void give_memory(const c10::Storage& storage, const c10::Storage& from) {
  auto* owner = new c10::Storage(from);
  storage.set_data_ptr(
      {from.mutable_data(), owner,
       [](void* context) { delete static_cast<c10::Storage*>(context); },
       from.device()});
}

}  // namespace tessera::internal
