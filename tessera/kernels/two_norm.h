// The 2-norm of large tensors in one pass over memory.
//
// LibTorch's kernel gives each block 64 Ki elements, whatever there are, and
// was seen at a third of the memory's speed on an H200.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// The 2-norm of each tensor: 0-dim, float, on its device; summed in float. A
/// tensor's bits depend on its values and their number alone, not on the other
/// tensors, on addresses or on the device.
///
/// tensors: of one device and dtype, each without holes.
/// Returns: nothing where there is no kernel: other devices than CUDA, builds
///          without it, other dtypes than float, bfloat16 and half.
[[nodiscard]] std::vector<at::Tensor> two_norms_in_one_pass(
    const std::vector<at::Tensor>& tensors);

}  // namespace tessera
