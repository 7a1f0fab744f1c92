#include "tessera/train/functions.h"

#include <torch/nn/functional/loss.h>
#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::train {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return torch::rms_norm(x, weight.sizes(), weight, eps);
}

Rotary make_rotary(int64_t seq, int64_t head_dim, double base) {
  require<InvalidArgument>(head_dim > 0 && head_dim % 2 == 0, [&] {
    return str("make_rotary: heads of width ", head_dim,
               "; their halves turn together, so give an even width.");
  });
  const auto real = torch::TensorOptions(torch::kDouble);
  const auto exponent = torch::arange(0, head_dim, 2, real) / head_dim;
  const auto frequency = torch::pow(base, exponent).reciprocal();
  auto angle = torch::outer(torch::arange(seq, real), frequency);
  angle = torch::cat({angle, angle}, -1);
  return {angle.cos().to(torch::kFloat), angle.sin().to(torch::kFloat)};
}

at::Tensor rotate(const at::Tensor& x, const Rotary& rotary) {
  const auto halves = x.chunk(2, -1);
  return x * rotary.cos + torch::cat({-halves[1], halves[0]}, -1) * rotary.sin;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return torch::silu(gate) * up;
}

at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
}

at::Tensor join_heads(const at::Tensor& x) {
  return x.transpose(1, 2).flatten(2);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) {
  const int64_t n = q.size(2), m = k.size(2);
  // LibTorch's own mask lets the first position of q see the first of k alone.
  std::optional<at::Tensor> mask;
  if (n != m && n > 1) {
    mask = torch::ones({n, m}, q.options().dtype(torch::kBool)).tril(m - n);
  }
  return torch::scaled_dot_product_attention(
      q, k, v, mask, /*dropout_p=*/0.0, /*is_causal=*/n == m,
      /*scale=*/{}, /*enable_gqa=*/q.size(1) != k.size(1));
}

at::Tensor dropout(const at::Tensor& x, double probability, Mode mode) {
  if (probability == 0 || mode == Mode::evaluation) return x;
  return torch::dropout(x, probability, /*train=*/true);
}

at::Tensor sum_of_token_losses(const at::Tensor& logits,
                               const at::Tensor& targets) {
  const auto precise =
      logits.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1).to(precise), targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions()
          .ignore_index(kNoTarget)
          .reduction(torch::kSum));
}

}  // namespace tessera::train
