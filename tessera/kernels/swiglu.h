// silu(gate) * up in one kernel, which keeps only its two inputs for backward.
//
//   Tensor y = down_proj(swiglu(gate_proj(x), up_proj(x)));
//
// On CUDA for float, bfloat16 and half; elsewhere LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// gate, up: one shape and floating dtype, which the result has.
/// Errors: InvalidArgument for others; Unsupported in a backward with
///         create_graph.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace tessera
