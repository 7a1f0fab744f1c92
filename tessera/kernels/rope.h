// Rotary positions in one kernel: each pair (i, i + D / 2) of a head is turned
// by the angle of its position.
//
//   Tensor q = rope(split_heads(q_proj(x)), cos, sin);
//
// On CUDA for float, bfloat16 and half; x may be a transposed view, whose
// layout the result has. Elsewhere LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// x: [B, H, N, D], D even. cos, sin: [M, D] with M >= N, of any floating
/// dtype; products are taken in float. Returns x's shape and dtype.
/// Errors: InvalidArgument for other shapes, or tables that require gradients;
///         Unsupported in a backward with create_graph.
[[nodiscard]] at::Tensor rope(const at::Tensor& x, const at::Tensor& cos,
                              const at::Tensor& sin);

}  // namespace tessera
