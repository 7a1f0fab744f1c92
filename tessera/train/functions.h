// The operations of the trainer's models, as functions of tensors alone.
//
// The models call these and nothing else, so a faster kernel has one place to
// go. All keep the dtype of their input unless said otherwise. Shapes: B
// sequences of N tokens, H heads of width D, vocabulary V.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::train {

/// x / sqrt(mean(x^2) + eps) * weight, over the last dim. weight: [dim].
[[nodiscard]] at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight,
                                  double eps);

/// cos and sin of position times frequency, [N, D] each; both halves of the
/// last dim hold the same D / 2 frequencies, base^(-2i/D).
struct Rotary {
  at::Tensor cos, sin;
};

/// Float32 tables on the CPU. Errors: InvalidArgument for an odd head_dim.
[[nodiscard]] Rotary make_rotary(int64_t seq, int64_t head_dim, double base);

/// Turns each pair (i, i + D / 2) of the last dim by the angle of its position.
/// x: [B, H, N, D]. The products are taken in the dtype of the tables.
[[nodiscard]] at::Tensor rotate(const at::Tensor& x, const Rotary& rotary);

/// silu(gate) * up.
[[nodiscard]] at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// [B, N, H * D] -> [B, H, N, D], a view.
[[nodiscard]] at::Tensor split_heads(const at::Tensor& x, int64_t heads);

/// [B, H, N, D] -> [B, N, H * D].
[[nodiscard]] at::Tensor join_heads(const at::Tensor& x);

/// softmax(q k^T / sqrt(D)) v, where a position sees itself and what is before.
/// q: [B, H, N, D]; k and v: [B, K, M, D] with K dividing H, each head of which
/// serves H / K heads of q. The N positions of q are the last of the M.
[[nodiscard]] at::Tensor causal_attention(const at::Tensor& q,
                                          const at::Tensor& k,
                                          const at::Tensor& v);

enum class Mode { training, evaluation };

/// In training each element is 0 with this probability, and the others are
/// divided by the rest of it; by the generator of x's device. Else x itself.
[[nodiscard]] at::Tensor dropout(const at::Tensor& x, double probability,
                                 Mode mode);

/// The sum over all targets but kNoTarget of -log softmax(logits)[target], in
/// float32 at least. logits: [B, N, V]; targets: [B, N], int64.
[[nodiscard]] at::Tensor sum_of_token_losses(const at::Tensor& logits,
                                             const at::Tensor& targets);

/// A target that does not count.
inline constexpr int64_t kNoTarget = -100;

}  // namespace tessera::train
