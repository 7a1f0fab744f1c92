// Cross-entropy for large vocabularies, summed over tokens.
//
//   Tensor loss = linear_cross_entropy(norm(x), lm_head->weight, targets);
//   (loss / num_tokens).backward();
//
// Loss and gradient come from one pass over the logits, which stay in their own
// dtype: there is no copy of them in float. linear_cross_entropy also
// multiplies by the head, a part of the tokens at a time, and writes the
// gradient over the logits of that part, so that all logits never exist at
// once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // targets that count nothing
};

/// The sum over all targets but ignore_index of -log softmax(logits)[target].
/// logits: [..., V]; targets: [...], int64. Returns a 0-dim float (double for
/// double). Keeps the gradient, of the size of the logits, for backward.
/// A target out of range is an error on CPU and gives NaN on CUDA, where
/// nothing waits for the device.
/// Errors: InvalidArgument for other shapes; Unsupported in a backward with
///         create_graph.
[[nodiscard]] at::Tensor cross_entropy(const at::Tensor& logits,
                                       const at::Tensor& targets,
                                       const CrossEntropyOptions& options = {});

struct LinearCrossEntropyOptions {
  int64_t ignore_index = -100;
  // Tokens whose logits exist at a time. 0: as many as take no more memory than
  // the weight's gradient in float.
  int64_t tokens_at_once = 0;
};

/// cross_entropy(hidden * weight^T, targets). hidden: [..., D]; weight: [V, D],
/// maybe a full parameter of fully_shard; targets: [...], int64. Gradients are
/// computed in the forward, while the weight is there: backward only scales
/// them. Memory until then: one hidden, one weight (in float if the tokens come
/// in several parts).
[[nodiscard]] at::Tensor linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight,
    const at::Tensor& targets, const LinearCrossEntropyOptions& options = {});

}  // namespace tessera
