// Root mean square norm, alone and after a residual add, in one kernel each.
//
//   Tensor y = rms_norm(x, weight, 1e-5);
//   auto [sum, y] = add_rms_norm(branch, residual, weight, 1e-5);
//
// On CUDA, for float, bfloat16 and half: everything is read once and written
// once, sums are taken in float, and the weight's gradient is summed in two
// stages, so it has the same bits in every run. Elsewhere LibTorch's operators.
// Full parameters of fully_shard may be given as they are.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim. x: [..., D], weight:
/// [D]. Returns x's shape and dtype.
/// Errors: InvalidArgument for other shapes, or an x that is not floating;
///         Unsupported in a backward with create_graph.
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                  double eps);

struct SumAndNorm {
  at::Tensor sum;   // x + residual, rounded to their dtype
  at::Tensor norm;  // of the rounded sum
};

/// As rms_norm of x + residual, which have one shape and dtype.
[[nodiscard]] SumAndNorm add_rms_norm(const at::Tensor& x,
                                      const at::Tensor& residual,
                                      const at::Tensor& weight, double eps);

}  // namespace tessera
