#include "tessera/kernels/aten_kernels.h"

#include <ATen/Functions.h>

namespace tessera::aten_kernels {

namespace {

using at::Tensor;

// The dtype of sums over a row.
c10::ScalarType precise(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct Halves {
  Tensor first, second;
};

Halves halves_of(const Tensor& x, c10::ScalarType dtype) {
  const int64_t half = x.size(-1) / 2;
  return {x.narrow(-1, 0, half).to(dtype), x.narrow(-1, half, half).to(dtype)};
}

// In the layout of x where that is dense.
Tensor joined_as(const Tensor& x, const Halves& halves) {
  Tensor y = at::empty_like(x);
  const int64_t half = x.size(-1) / 2;
  y.narrow(-1, 0, half).copy_(halves.first);
  y.narrow(-1, half, half).copy_(halves.second);
  return y;
}

struct Losses {
  Tensor of_rows;
  Tensor log_probabilities;
  Tensor counts;  // [R]: which targets do
  Tensor index;   // [R, 1]: the target, or 0 where none counts
};

Losses losses_of(const Tensor& logits, const Tensor& targets,
                 int64_t ignore_index) {
  Losses losses;
  losses.counts = targets.ne(ignore_index);
  losses.index = targets.where(losses.counts, 0).unsqueeze(-1);
  losses.log_probabilities = at::log_softmax(logits, -1, precise(logits));
  const Tensor taken =
      losses.log_probabilities.gather(-1, losses.index).squeeze(-1);
  losses.of_rows = at::where(losses.counts, taken.neg(), 0);
  return losses;
}

}  // namespace

std::tuple<Tensor, Tensor> rms_norm(const Tensor& x, const Tensor& weight,
                                    double eps) {
  const auto dtype = precise(x);
  const Tensor wide = x.to(dtype);
  const Tensor rstd = wide.square().mean(-1).add(eps).rsqrt();
  const Tensor y = wide * rstd.unsqueeze(-1) * weight.to(dtype);
  return {y.to(x.scalar_type()), rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x,
                                                const Tensor& residual,
                                                const Tensor& weight,
                                                double eps) {
  Tensor sum = x + residual;
  auto [y, rstd] = aten_kernels::rms_norm(sum, weight, eps);
  return {std::move(sum), std::move(y), std::move(rstd)};
}

std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& dy,
                                             const std::optional<Tensor>& dsum,
                                             const Tensor& x,
                                             const Tensor& weight,
                                             const Tensor& rstd) {
  const auto dtype = precise(x);
  const Tensor gradient = dy.to(dtype);
  const Tensor scale = rstd.unsqueeze(-1);
  const Tensor normed = x.to(dtype) * scale;
  const Tensor weighted = gradient * weight.to(dtype);
  Tensor dx = scale * (weighted -
                       normed * (weighted * normed).mean(-1, /*keepdim=*/true));
  if (dsum) dx += dsum->to(dtype);
  const Tensor dweight =
      (gradient * normed).reshape({-1, weight.size(0)}).sum(0);
  return {dx.to(x.scalar_type()), dweight.to(weight.scalar_type())};
}

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto dtype = precise(x);
  const Halves in = halves_of(x, dtype);
  const Halves c = halves_of(cos, dtype);
  const Halves s = halves_of(sin, dtype);
  return joined_as(x, {in.first * c.first - in.second * s.first,
                       in.second * c.second + in.first * s.second});
}

Tensor rope_backward(const Tensor& dy, const Tensor& cos, const Tensor& sin) {
  const auto dtype = precise(dy);
  const Halves in = halves_of(dy, dtype);
  const Halves c = halves_of(cos, dtype);
  const Halves s = halves_of(sin, dtype);
  return joined_as(dy, {in.first * c.first + in.second * s.second,
                        in.second * c.second - in.first * s.first});
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  const auto dtype = precise(gate);
  return (at::silu(gate.to(dtype)) * up.to(dtype)).to(gate.scalar_type());
}

std::tuple<Tensor, Tensor> swiglu_backward(const Tensor& dy, const Tensor& gate,
                                           const Tensor& up) {
  const auto dtype = precise(gate);
  const Tensor g = gate.to(dtype);
  const Tensor gradient = dy.to(dtype);
  const Tensor open = at::sigmoid(g);
  const Tensor slope = open * (1 + g * (1 - open));
  return {(gradient * up.to(dtype) * slope).to(gate.scalar_type()),
          (gradient * g * open).to(up.scalar_type())};
}

void swiglu_backward_in_place(Tensor dy, Tensor gate, Tensor up) {
  const Tensor y = aten_kernels::swiglu(gate, up);
  const auto [dgate, dup] = aten_kernels::swiglu_backward(dy, gate, up);
  dy.copy_(y);
  gate.copy_(dgate);
  up.copy_(dup);
}

void product_out(Tensor out, const Tensor& a, const Tensor& b, double beta) {
  if (beta == 0) {
    at::mm_out(out, a, b);
  } else {
    out.addmm_(a, b, beta);
  }
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     int64_t ignore_index) {
  return losses_of(logits, targets, ignore_index).of_rows;
}

Tensor cross_entropy_gradient(const Tensor& logits, const Tensor& targets,
                              int64_t ignore_index, Tensor gradient) {
  const Losses losses = losses_of(logits, targets, ignore_index);
  Tensor slope = losses.log_probabilities.exp();
  slope.scatter_add_(-1, losses.index,
                     at::full_like(losses.index, -1.0, slope.options()));
  gradient.copy_(at::where(losses.counts.unsqueeze(-1), slope, 0));
  return losses.of_rows;
}

}  // namespace tessera::aten_kernels
