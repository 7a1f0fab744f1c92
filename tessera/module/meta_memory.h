// Turning a meta tensor into a real one in place, so that every handle of it
// (module member, dictionary entry) sees the change.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// Points `tensor`, on meta, at `storage`: same TensorImpl, new device. Its data
/// may now be set with `set_data`.
void leave_meta(const at::Tensor& tensor, c10::StorageImpl* storage);

/// Gives `tensor`, on meta, memory of its own on `device`, filled with what
/// `is_unset` recognises (NaN, or the least integer).
void give_unset_memory(const at::Tensor& tensor, c10::Device device);

/// Whether an element still holds the filling of `give_unset_memory` (or is NaN
/// for another reason). Waits for the device.
[[nodiscard]] bool is_unset(const at::Tensor& tensor);

void fill_unset(const at::Tensor& tensor);

}  // namespace tessera
