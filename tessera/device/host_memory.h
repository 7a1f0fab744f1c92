// Host memory that a device copies to and from beside its other work.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace tessera {

/// `num_bytes` of host memory, uint8, with any values. For a GPU they are
/// pinned, and no more than these: LibTorch's own pinned memory is rounded up
/// to a power of two, and never given back. Pinning takes the system about a
/// second for some GB: keep what will be needed again. Errors: c10::Error when
/// there is not so much memory.
[[nodiscard]] at::Tensor make_host_bytes(int64_t num_bytes, c10::Device device);

}  // namespace tessera
