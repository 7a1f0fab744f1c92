#include "tessera/train/generate.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

void validate(const GenerateOptions& o) {
  tessera::require<InvalidArgument>(
      !o.prompt.empty() && o.window > 0 && o.num_tokens >= 0, [&] {
        return str("generate: a prompt of ", o.prompt.size(),
                   " tokens, window ", o.window, ", ", o.num_tokens,
                   " tokens wanted; give at least 1, 1 and 0.");
      });
  train::validate(o.sample);
}

/// The last `window` tokens, as one row.
at::Tensor context(const std::vector<int64_t>& tokens, int64_t window) {
  const auto n = std::min(window, static_cast<int64_t>(tokens.size()));
  return torch::tensor(std::vector<int64_t>(tokens.end() - n, tokens.end()),
                       torch::kLong)
      .unsqueeze(0);
}

}  // namespace

std::vector<int64_t> generate(LanguageModel& model,
                              const GenerateOptions& options) {
  validate(options);
  const torch::NoGradGuard no_grad;
  const auto device = model.parameters().front().device();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<int64_t> tokens = options.prompt;
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    const auto input = context(tokens, options.window).to(device);
    const auto logits = model.forward(input).select(1, -1).squeeze(0);
    tokens.push_back(sample_token(logits, options.sample, generator));
    if (options.on_token) options.on_token(tokens.back());
  }
  tokens.erase(tokens.begin(), tokens.begin() + options.prompt.size());
  return tokens;
}

}  // namespace tessera::train
