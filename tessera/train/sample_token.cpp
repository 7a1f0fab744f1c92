#include "tessera/train/sample_token.h"

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

at::Tensor one_hot_of_likeliest(const at::Tensor& logits) {
  auto probabilities = torch::zeros_like(logits);
  probabilities[logits.argmax().item<int64_t>()] = 1;
  return probabilities;
}

/// Keeps the likeliest tokens up to the one with which `top_p` is reached.
at::Tensor cut_at(const at::Tensor& probabilities, double top_p) {
  const auto [sorted, order] =
      probabilities.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true);
  const auto before = sorted.cumsum(-1) - sorted;
  const auto kept = sorted.masked_fill(before >= top_p, 0);
  return torch::zeros_like(probabilities).scatter(0, order, kept);
}

}  // namespace

void validate(const SampleOptions& o) {
  tessera::require<InvalidArgument>(
      o.temperature >= 0 && o.top_k >= 0 && o.top_p > 0 && o.top_p <= 1, [&] {
        return str("sample_token: temperature ", o.temperature, ", top_k ",
                   o.top_k, ", top_p ", o.top_p,
                   "; give 0 or more, 0 or more, and above 0 to 1.");
      });
}

at::Tensor token_probabilities(const at::Tensor& logits,
                               const SampleOptions& options) {
  validate(options);
  const auto precise = logits.detach().to(torch::kCPU, torch::kDouble);
  if (options.temperature == 0) return one_hot_of_likeliest(precise);
  auto scaled = precise / options.temperature;
  if (options.top_k > 0 && options.top_k < scaled.numel()) {
    const auto least = std::get<0>(scaled.topk(options.top_k)).min();
    scaled = scaled.masked_fill(scaled < least, -INFINITY);
  }
  auto probabilities = scaled.softmax(-1);
  if (options.top_p < 1) probabilities = cut_at(probabilities, options.top_p);
  return probabilities / probabilities.sum();
}

int64_t sample_token(const at::Tensor& logits, const SampleOptions& options,
                     at::Generator& generator) {
  return torch::multinomial(token_probabilities(logits, options), 1, false,
                            generator)
      .item<int64_t>();
}

}  // namespace tessera::train
