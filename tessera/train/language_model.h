// What the trainer knows of a model: tokens in, logits out, and the parts that
// are gathered one at a time.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/train/functions.h"
#include "tessera/train/key_value_cache.h"

namespace tessera::train {

class LanguageModel : public torch::nn::Module {
 public:
  /// tokens: [B, N], int64. Returns [B, N, V]: at each position the logits of
  /// the token that comes after it.
  [[nodiscard]] virtual at::Tensor forward(const at::Tensor& tokens) = 0;

  /// The sum of token losses over all targets but kNoTarget; targets: [B, N]. A
  /// model may have a way that never holds all logits.
  [[nodiscard]] virtual at::Tensor sum_of_losses(const at::Tensor& tokens,
                                                 const at::Tensor& targets) {
    return sum_of_token_losses(forward(tokens), targets);
  }

  /// The modules that are units of their own: embedding, blocks and head, in
  /// the order of the forward. What stands in none of them belongs to the root.
  [[nodiscard]] virtual std::vector<torch::nn::Module*> units() = 0;

  /// `forward` of tokens that come after those which `cache` has seen, and adds
  /// them to it. For generation: no gradient flows into what the cache keeps.
  /// Errors: InvalidArgument for more tokens than the cache or the model takes.
  [[nodiscard]] virtual at::Tensor extend(const at::Tensor& tokens,
                                          KeyValueCache& cache) = 0;
};

[[nodiscard]] inline Mode mode_of(const torch::nn::Module& module) {
  return module.is_training() ? Mode::training : Mode::evaluation;
}

using LanguageModelPtr = std::shared_ptr<LanguageModel>;

}  // namespace tessera::train
