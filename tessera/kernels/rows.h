// Tensors of any number of dims as matrices, for the products of this library's
// functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/kernels/operators.h"

namespace tessera::internal {

/// [..., D] as [R, D].
[[nodiscard]] inline at::Tensor as_rows(const at::Tensor& x) {
  const auto leading = x.sizes().slice(0, x.dim() - 1);
  return x.reshape({c10::multiply_integers(leading), x.size(-1)});
}

/// rows * weight^T. rows: [R, D]; weight: [D', D]; result: [R, D'].
[[nodiscard]] inline at::Tensor times_transposed(const at::Tensor& rows,
                                                 const at::Tensor& weight) {
  return operators::product(rows, weight.t());
}

}  // namespace tessera::internal
