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

/// A model that has read a text which grows.
class Reader {
 public:
  Reader(LanguageModel& model, int64_t window)
      : model_(model),
        window_(window),
        cache_(window),
        device_(model.parameters().front().device()) {}

  /// The logits of what comes after `tokens`, which go on where those of the
  /// last call ended.
  at::Tensor read(const std::vector<int64_t>& tokens) {
    const auto size = static_cast<int64_t>(tokens.size());
    if (size - first_ > window_) {
      first_ = size - std::max<int64_t>(1, window_ - window_ / 4);
      cache_.clear();
    }
    const std::vector<int64_t> fresh(tokens.begin() + first_ + cache_.length(),
                                     tokens.end());
    const auto row = torch::tensor(fresh, torch::kLong).unsqueeze(0);
    return model_.extend(row.to(device_), cache_).select(1, -1).squeeze(0);
  }

 private:
  LanguageModel& model_;
  int64_t window_;
  int64_t first_ = 0;  // of the tokens, the one that the cache begins with
  KeyValueCache cache_;
  c10::Device device_;
};

}  // namespace

std::vector<int64_t> generate(LanguageModel& model,
                              const GenerateOptions& options) {
  validate(options);
  const torch::NoGradGuard no_grad;
  Reader reader(model, options.window);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  std::vector<int64_t> tokens = options.prompt;
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    tokens.push_back(
        sample_token(reader.read(tokens), options.sample, generator));
    if (options.on_token) options.on_token(tokens.back());
  }
  tokens.erase(tokens.begin(), tokens.begin() + options.prompt.size());
  return tokens;
}

}  // namespace tessera::train
