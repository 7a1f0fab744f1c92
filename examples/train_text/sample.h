// Text from a model, one byte after another.
#pragma once

#include <cstdint>
#include <string>

#include "examples/train_text/model.h"

namespace train_text {

struct SampleOptions {
  std::string prompt = "\n";
  int64_t num_bytes = 400;
  int64_t window = 128;      // the model sees this many bytes at most
  double temperature = 0.7;  // 0: always the likeliest byte
  uint64_t seed = 0;
};

/// Draws from softmax(logits / temperature). logits: [vocab].
[[nodiscard]] int64_t pick(const torch::Tensor& logits, double temperature,
                           torch::Generator& generator);

/// The prompt's continuation, without the prompt. With a sharded model every
/// rank calls it with the same options, and gets the same text.
/// Errors: InvalidArgument for an empty prompt, window < 1, temperature < 0.
[[nodiscard]] std::string sample(Llama& model, const SampleOptions& options);

}  // namespace train_text
