// Norms of large tensors that can be trusted: taken in chunks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// The p of norms that backward may take (set_norm_in_backward).
inline constexpr double kNormInBackward = 2;

/// The p-norms of the chunks of each tensor, in order: 0-dim tensors on its
/// device, in fp64 for fp64 and in fp32 for others. What they are does not
/// depend on the other tensors.
///
/// tensors: of one device and dtype, with elements. On CPU, contiguous ones are
///          cut into chunks; elsewhere each tensor is one chunk.
[[nodiscard]] std::vector<std::vector<at::Tensor>> chunk_norms(
    const std::vector<at::Tensor>& tensors, double p);

}  // namespace tessera
