#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "tessera/kernels/aten_kernels.h"
#include "tessera/kernels/cuda_kernels.h"
#include "tessera/kernels/element_of.h"
#include "tessera/kernels/launch.h"
#include "tessera/kernels/tuned_products.h"

namespace tessera {

namespace {

using at::Tensor;

std::optional<cuda::Element> element_of(const Tensor& tensor) {
  return cuda::element_of(tensor.scalar_type());
}

template <class Call>
void launch_on(const Tensor& where, const Call& call) {
  const c10::DeviceGuard guard(where.device());
  cuda::launch(call, at::cuda::getCurrentCUDAStream(where.get_device()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

/// `tensor` in the dtype and order that a kernel expects; itself if it is.
Tensor as(const Tensor& tensor, const Tensor& like) {
  return tensor.to(like.scalar_type()).contiguous();
}

// Norms -----------------------------------------------------------------------

Tensor empty_rstd(const Tensor& x) {
  return at::empty(x.sizes().slice(0, x.dim() - 1),
                   x.options().dtype(at::kFloat));
}

std::tuple<Tensor, Tensor> rms_norm(const Tensor& input, const Tensor& weight,
                                    double eps) {
  const auto element = element_of(input);
  if (!element) return aten_kernels::rms_norm(input, weight, eps);
  const Tensor x = input.contiguous();
  const Tensor scale = as(weight, x);
  Tensor y = at::empty_like(x);
  Tensor rstd = empty_rstd(x);
  if (rstd.numel() == 0) return {y, rstd};
  launch_on(x, cuda::RmsNorm{.element = *element,
                             .rows = rstd.numel(),
                             .dim = x.size(-1),
                             .eps = static_cast<float>(eps),
                             .x = x.const_data_ptr(),
                             .residual = nullptr,
                             .weight = scale.const_data_ptr(),
                             .sum = nullptr,
                             .y = y.mutable_data_ptr(),
                             .rstd = rstd.mutable_data_ptr<float>()});
  return {y, rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& input,
                                                const Tensor& residual,
                                                const Tensor& weight,
                                                double eps) {
  const auto element = element_of(input);
  if (!element) {
    return aten_kernels::add_rms_norm(input, residual, weight, eps);
  }
  const Tensor x = input.contiguous();
  const Tensor other = as(residual, x);
  const Tensor scale = as(weight, x);
  Tensor sum = at::empty_like(x);
  Tensor y = at::empty_like(x);
  Tensor rstd = empty_rstd(x);
  if (rstd.numel() == 0) return {sum, y, rstd};
  launch_on(x, cuda::RmsNorm{.element = *element,
                             .rows = rstd.numel(),
                             .dim = x.size(-1),
                             .eps = static_cast<float>(eps),
                             .x = x.const_data_ptr(),
                             .residual = other.const_data_ptr(),
                             .weight = scale.const_data_ptr(),
                             .sum = sum.mutable_data_ptr(),
                             .y = y.mutable_data_ptr(),
                             .rstd = rstd.mutable_data_ptr<float>()});
  return {sum, y, rstd};
}

/// Enough to fill the device; each writes one row of partial sums.
int num_backward_blocks(int64_t rows, int64_t bytes_of_row) {
  const int64_t fill =
      (bytes_of_row > cuda::kLongestShortRow ? 4 : 2) *
      at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  return static_cast<int>(std::min(rows, fill));
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& gradient,
                                             const std::optional<Tensor>& dsum,
                                             const Tensor& input,
                                             const Tensor& weight,
                                             const Tensor& rstd) {
  const auto element = element_of(input);
  const int64_t dim = weight.size(0);
  if (!element || dim > cuda::kLongestNorm || rstd.numel() == 0) {
    return aten_kernels::rms_norm_backward(gradient, dsum, input, weight, rstd);
  }
  const c10::DeviceGuard guard(input.device());
  const Tensor x = input.contiguous();
  const Tensor dy = as(gradient, x);
  const Tensor more = dsum ? as(*dsum, x) : Tensor();
  const Tensor scale = as(weight, x);
  const int blocks = num_backward_blocks(
      rstd.numel(), dim * static_cast<int64_t>(x.element_size()));
  Tensor dx = at::empty_like(x);
  Tensor dweight = at::empty({dim}, x.options());
  Tensor partial = at::empty({blocks, dim}, x.options().dtype(at::kFloat));
  launch_on(x, cuda::RmsNormBackward{
                   .element = *element,
                   .rows = rstd.numel(),
                   .dim = dim,
                   .num_blocks = blocks,
                   .dy = dy.const_data_ptr(),
                   .dsum = more.defined() ? more.const_data_ptr() : nullptr,
                   .x = x.const_data_ptr(),
                   .weight = scale.const_data_ptr(),
                   .rstd = rstd.const_data_ptr<float>(),
                   .dx = dx.mutable_data_ptr(),
                   .partial = partial.mutable_data_ptr<float>(),
                   .dweight = dweight.mutable_data_ptr()});
  return {dx, dweight.to(weight.scalar_type())};
}

// Positions -------------------------------------------------------------------

cuda::Rope::Strides strides_of(const Tensor& x) {
  return {x.stride(0), x.stride(1), x.stride(2)};
}

Tensor turn(const Tensor& input, const Tensor& cos, const Tensor& sin,
            cuda::Rope::Turn direction) {
  const Tensor x = input.stride(3) == 1 ? input : input.contiguous();
  const bool own_dtype = cos.scalar_type() == x.scalar_type() &&
                         sin.scalar_type() == x.scalar_type();
  const auto table = own_dtype ? x.scalar_type() : at::kFloat;
  const Tensor c = cos.to(table).contiguous();
  const Tensor s = sin.to(table).contiguous();
  Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  launch_on(x, cuda::Rope{.element = *element_of(x),
                          .table = *element_of(c),
                          .turn = direction,
                          .batch = x.size(0),
                          .heads = x.size(1),
                          .positions = x.size(2),
                          .half = static_cast<int>(x.size(3) / 2),
                          .x = x.const_data_ptr(),
                          .from = strides_of(x),
                          .y = y.mutable_data_ptr(),
                          .to = strides_of(y),
                          .cos = c.const_data_ptr(),
                          .sin = s.const_data_ptr()});
  return y;
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return element_of(x) ? turn(x, cos, sin, cuda::Rope::Turn::forward)
                       : aten_kernels::rope(x, cos, sin);
}

Tensor rope_backward(const Tensor& dy, const Tensor& cos, const Tensor& sin) {
  return element_of(dy) ? turn(dy, cos, sin, cuda::Rope::Turn::back)
                        : aten_kernels::rope_backward(dy, cos, sin);
}

// SwiGLU ----------------------------------------------------------------------

Tensor swiglu(const Tensor& gate_input, const Tensor& up_input) {
  const auto element = element_of(gate_input);
  if (!element) return aten_kernels::swiglu(gate_input, up_input);
  const Tensor gate = gate_input.contiguous();
  const Tensor up = as(up_input, gate);
  Tensor y = at::empty_like(gate);
  if (y.numel() == 0) return y;
  launch_on(gate, cuda::Swiglu{.element = *element,
                               .numel = y.numel(),
                               .gate = gate.const_data_ptr(),
                               .up = up.const_data_ptr(),
                               .y = y.mutable_data_ptr()});
  return y;
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& gradient,
                                           const Tensor& gate_input,
                                           const Tensor& up_input) {
  const auto element = element_of(gate_input);
  if (!element) {
    return aten_kernels::swiglu_backward(gradient, gate_input, up_input);
  }
  const Tensor gate = gate_input.contiguous();
  const Tensor up = as(up_input, gate);
  const Tensor dy = as(gradient, gate);
  Tensor dgate = at::empty_like(gate);
  Tensor dup = at::empty_like(gate);
  if (dy.numel() == 0) return {dgate, dup};
  launch_on(gate, cuda::SwigluBackward{.element = *element,
                                       .numel = dy.numel(),
                                       .dy = dy.const_data_ptr(),
                                       .gate = gate.const_data_ptr(),
                                       .up = up.const_data_ptr(),
                                       .dgate = dgate.mutable_data_ptr(),
                                       .dup = dup.mutable_data_ptr()});
  return {dgate, dup};
}

bool dense_like(const Tensor& tensor, const Tensor& other) {
  return tensor.is_contiguous() && tensor.sizes() == other.sizes() &&
         tensor.scalar_type() == other.scalar_type();
}

void swiglu_backward_in_place(Tensor dy, Tensor gate, Tensor up) {
  const auto element = element_of(gate);
  const bool kernel_takes_it = element && gate.is_contiguous() &&
                               dense_like(dy, gate) && dense_like(up, gate);
  if (!kernel_takes_it) {
    aten_kernels::swiglu_backward_in_place(dy, gate, up);
    return;
  }
  if (dy.numel() == 0) return;
  launch_on(gate, cuda::SwigluInPlace{.element = *element,
                                      .numel = dy.numel(),
                                      .dy = dy.mutable_data_ptr(),
                                      .gate = gate.mutable_data_ptr(),
                                      .up = up.mutable_data_ptr()});
}

void product_out(Tensor out, const Tensor& a, const Tensor& b, double beta) {
  tuned_product(out, a, b, beta);
}

// Cross-entropy ---------------------------------------------------------------

bool rows_are_dense(const Tensor& logits) {
  return logits.size(1) <= 1 || logits.stride(1) == 1;
}

Tensor lose(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
            const Tensor& gradient) {
  Tensor losses =
      at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  if (losses.numel() == 0) return losses;
  const Tensor wanted = targets.contiguous();
  launch_on(logits,
            cuda::CrossEntropy{.element = *element_of(logits),
                               .rows = logits.size(0),
                               .vocab = logits.size(1),
                               .row_stride = logits.stride(0),
                               .ignored = ignore_index,
                               .logits = logits.const_data_ptr(),
                               .targets = wanted.const_data_ptr<int64_t>(),
                               .losses = losses.mutable_data_ptr<float>(),
                               .gradient = gradient.defined()
                                               ? gradient.mutable_data_ptr()
                                               : nullptr});
  return losses;
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     int64_t ignore_index) {
  if (!element_of(logits)) {
    return aten_kernels::cross_entropy(logits, targets, ignore_index);
  }
  return lose(rows_are_dense(logits) ? logits : logits.contiguous(), targets,
              ignore_index, {});
}

Tensor cross_entropy_gradient(const Tensor& logits, const Tensor& targets,
                              int64_t ignore_index, Tensor gradient) {
  const bool alike = logits.strides() == gradient.strides() &&
                     logits.scalar_type() == gradient.scalar_type();
  if (!element_of(logits) || !rows_are_dense(logits) || !alike) {
    return aten_kernels::cross_entropy_gradient(logits, targets, ignore_index,
                                                std::move(gradient));
  }
  return lose(logits, targets, ignore_index, gradient);
}

}  // namespace

void register_cuda_kernels(torch::Library& library) {
  const auto add = [&](const char* name, auto function) {
    library.impl(name, torch::dispatch(c10::DispatchKey::CUDA, function));
  };
  add("rms_norm", TORCH_FN(rms_norm));
  add("add_rms_norm", TORCH_FN(add_rms_norm));
  add("rms_norm_backward", TORCH_FN(rms_norm_backward));
  add("rope", TORCH_FN(rope));
  add("rope_backward", TORCH_FN(rope_backward));
  add("swiglu", TORCH_FN(swiglu));
  add("swiglu_backward", TORCH_FN(swiglu_backward));
  add("swiglu_backward_in_place", TORCH_FN(swiglu_backward_in_place));
  add("product_out", TORCH_FN(product_out));
  add("cross_entropy", TORCH_FN(cross_entropy));
  add("cross_entropy_gradient", TORCH_FN(cross_entropy_gradient));
}

}  // namespace tessera
