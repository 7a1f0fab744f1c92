#include "examples/train_text/sample.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace train_text {
namespace {

using tessera::InvalidArgument;
using tessera::require;
using tessera::str;

void validate(const SampleOptions& o) {
  require<InvalidArgument>(
      !o.prompt.empty() && o.window > 0 && o.temperature >= 0, [&] {
        return str("sample: prompt of ", o.prompt.size(), " bytes, window ",
                   o.window, ", temperature ", o.temperature,
                   "; give at least one byte, 1, and 0.");
      });
}

/// The last `window` bytes, as one row of tokens.
torch::Tensor context(const std::string& text, int64_t window) {
  const auto n = std::min(window, static_cast<int64_t>(text.size()));
  auto tokens = torch::empty({1, n}, torch::kLong);
  std::transform(text.end() - n, text.end(), tokens.data_ptr<int64_t>(),
                 [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

}  // namespace

int64_t pick(const torch::Tensor& logits, double temperature,
             torch::Generator& generator) {
  if (temperature == 0) {
    return logits.argmax().item<int64_t>();
  }
  const auto scaled = logits.to(torch::kDouble) / temperature;
  return torch::multinomial(scaled.softmax(-1), 1, false, generator)
      .item<int64_t>();
}

std::string sample(Llama& model, const SampleOptions& options) {
  validate(options);
  const torch::NoGradGuard no_grad;
  const auto device = model->parameters().front().device();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::string text = options.prompt;
  for (int64_t i = 0; i < options.num_bytes; ++i) {
    const auto tokens = context(text, options.window).to(device);
    const auto logits = model(tokens).select(1, -1).squeeze(0).cpu();
    text.push_back(
        static_cast<char>(pick(logits, options.temperature, generator)));
  }
  return text.substr(options.prompt.size());
}

}  // namespace train_text
