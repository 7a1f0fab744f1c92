// The operators of operators.h in LibTorch's own: what runs on a CPU, for
// doubles, and wherever there is no kernel. The CUDA kernels are held to these.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace tessera::aten_kernels {

std::tuple<at::Tensor, at::Tensor> rms_norm(const at::Tensor& x,
                                            const at::Tensor& weight,
                                            double eps);
std::tuple<at::Tensor, at::Tensor, at::Tensor> add_rms_norm(
    const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
    double eps);
std::tuple<at::Tensor, at::Tensor> rms_norm_backward(
    const at::Tensor& dy, const std::optional<at::Tensor>& dsum,
    const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd);
at::Tensor rope(const at::Tensor& x, const at::Tensor& cos,
                const at::Tensor& sin);
at::Tensor rope_backward(const at::Tensor& dy, const at::Tensor& cos,
                         const at::Tensor& sin);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
std::tuple<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& dy,
                                                   const at::Tensor& gate,
                                                   const at::Tensor& up);
void swiglu_backward_in_place(at::Tensor dy, at::Tensor gate, at::Tensor up);
void product_out(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
                 double beta);
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                         int64_t ignore_index);
at::Tensor cross_entropy_gradient(const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  int64_t ignore_index, at::Tensor gradient);

}  // namespace tessera::aten_kernels
