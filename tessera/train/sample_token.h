// The choice of the next token.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::train {

struct SampleOptions {
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 0;         // only the k likeliest tokens; 0: all
  double top_p = 1.0;  // only the likeliest tokens that together have this much
};

/// Errors: InvalidArgument for a negative temperature or top_k, or a top_p
///         outside (0, 1].
void validate(const SampleOptions& options);

/// The distribution that `sample_token` draws from: softmax(logits /
/// temperature), cut by top_k, then by top_p, and brought to a sum of one.
/// logits: [V]. Returns [V], double, on the CPU.
[[nodiscard]] at::Tensor token_probabilities(const at::Tensor& logits,
                                             const SampleOptions& options);

[[nodiscard]] int64_t sample_token(const at::Tensor& logits,
                                   const SampleOptions& options,
                                   at::Generator& generator);

}  // namespace tessera::train
