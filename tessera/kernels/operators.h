// The arithmetic behind the fused functions, as operators of the dispatcher.
//
// An operator picks the CUDA kernel or the plain version of its tensors'
// device, shows in profiles as tessera::NAME, and passes through whatever
// stands in front of operators: so a full parameter of fully_shard is gathered
// before a kernel sees its pointer. None has an autograd rule: the functions
// that users call (rms_norm.h and its neighbours) do that.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace tessera::operators {

/// {y, rstd}: y as x, rstd one float (double for double) a row.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> rms_norm(
    const at::Tensor& x, const at::Tensor& weight, double eps);

/// {x + residual, y, rstd}, y being the norm of the sum.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    double eps);

/// {dx, dweight}; x is what was normed, dsum is added to dx.
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy, const std::optional<at::Tensor>& dsum,
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd);

/// x: [B, H, N, D] with any strides; tables: [N, D].
[[nodiscard]] at::Tensor rope(const at::Tensor& x, const at::Tensor& cos,
                              const at::Tensor& sin);
[[nodiscard]] at::Tensor rope_backward(const at::Tensor& dy,
                                       const at::Tensor& cos,
                                       const at::Tensor& sin);

[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
/// {dgate, dup}
[[nodiscard]] std::tuple<at::Tensor, at::Tensor> swiglu_backward(
    const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up);

/// The same in place: dgate over `gate`, dup over `up`, and, for the gradient
/// of what it is multiplied by, swiglu(gate, up) over `dy`.
void swiglu_backward_in_place(const at::Tensor& dy, const at::Tensor& gate,
                              const at::Tensor& up);

/// a * b. a: [M, K]; b: [K, N]; views and transposes too.
[[nodiscard]] at::Tensor product(const at::Tensor& a, const at::Tensor& b);
/// out = a * b + beta * out; beta: 0 or 1.
void product_out(const at::Tensor& out, const at::Tensor& a,
                 const at::Tensor& b, double beta);

/// Loss of each row: float, or double for double. logits: [R, V].
[[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits,
                                       const at::Tensor& targets,
                                       int64_t ignore_index);
/// The same; the gradient of the sum of all losses is written to `gradient`,
/// which may be `logits` itself.
[[nodiscard]] at::Tensor cross_entropy_gradient(const at::Tensor& logits,
                                                const at::Tensor& targets,
                                                int64_t ignore_index,
                                                const at::Tensor& gradient);

}  // namespace tessera::operators
