// Tokens from a model, one after another.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/train/language_model.h"
#include "tessera/train/sample_token.h"

namespace tessera::train {

struct GenerateOptions {
  std::vector<int64_t> prompt = {};  // at least one token
  int64_t num_tokens = 200;
  // The model sees this many tokens at most. Where they are full, the oldest
  // quarter is forgotten, and the rest read anew.
  int64_t window = 128;
  SampleOptions sample = {};
  uint64_t seed = 0;
  // Called with each token as it comes.
  std::function<void(int64_t)> on_token = {};
};

/// The prompt's continuation, without the prompt. Keys and values of tokens
/// that were read are kept, so that a token costs the work of one. With a
/// sharded model every rank calls it with the same options, and gets the same
/// tokens. Errors: InvalidArgument for an empty prompt, window < 1, num_tokens
/// < 0.
std::vector<int64_t> generate(LanguageModel& model,
                              const GenerateOptions& options);

}  // namespace tessera::train
