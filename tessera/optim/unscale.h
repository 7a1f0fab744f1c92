// Gradients divided by a loss scale, and whether all of them, on all ranks, are
// finite. Inside optim only; GradScaler is what users see.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// Divides the gradients of `parameters` in place by `scale` (one number). One
/// all-reduce for each set of ranks that holds some of them.
///
/// Returns: two fp32 numbers where `scale` is, equal on all ranks: 0 if all
///          gradients are finite, 0 if there is none; else 1.
/// Errors:  InvalidArgument for fp16 gradients, Unsupported for sparse ones.
[[nodiscard]] at::Tensor unscale_gradients(
    const std::vector<at::Tensor>& parameters, const at::Tensor& scale);

}  // namespace tessera
