// Storages that lose their memory while tensors and graphs still hold them, and
// get it back before these are read.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::internal {

/// Errors: InvalidArgument, which names the `caller`, for a value that is not
/// contiguous or not the whole of its storage.
void require_whole_storage(const at::Tensor& value, const char* caller);

void take_memory(const c10::Storage& storage);

/// The memory of `from`, which lives as long as either: a graph may have saved
/// both.
void give_memory(const c10::Storage& storage, const c10::Storage& from);

}  // namespace tessera::internal
