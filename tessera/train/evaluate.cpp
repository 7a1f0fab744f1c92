#include "tessera/train/evaluate.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/train/sum_over_ranks.h"

namespace tessera::train {
namespace {

/// Windows `first` to `first + count` of those taken, each `stride` apart;
/// numbers past the end of the text where fewer are left.
std::vector<int64_t> windows_at(int64_t first, int64_t count, int64_t taken,
                                int64_t stride, int64_t all) {
  std::vector<int64_t> windows(count);
  for (int64_t i = 0; i < count; ++i) {
    windows[i] = first + i < taken ? (first + i) * stride : all;
  }
  return windows;
}

/// Without dropout while it lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(LanguageModel& model)
      : model_(model), training_(model.is_training()) {
    model_.eval();
  }
  ~EvaluationScope() { model_.train(training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  LanguageModel& model_;
  bool training_;
};

}  // namespace

Evaluation evaluate(LanguageModel& model, const TokenBatches& text,
                    const DeviceMesh& mesh, const EvaluateOptions& options) {
  const torch::NoGradGuard no_grad;
  const EvaluationScope scope(model);
  const int64_t all = text.num_windows();
  const int64_t taken =
      options.max_windows > 0 ? std::min(all, options.max_windows) : all;
  const int64_t stride =
      std::max<int64_t>(1, all / std::max<int64_t>(1, taken));
  const int64_t step = options.batch * mesh.numel();

  auto sums =
      torch::zeros(2, torch::dtype(torch::kDouble).device(mesh.device()));
  for (int64_t start = 0; start < taken; start += step) {
    const int64_t first = start + mesh.world().rank() * options.batch;
    const auto windows = windows_at(first, options.batch, taken, stride, all);
    const Batch batch = text.batch(windows);
    sums[0] += model.sum_of_losses(batch.input.to(mesh.device()),
                                   batch.target.to(mesh.device()));
    sums[1] += batch.target.ne(kNoTarget).sum().to(mesh.device());
  }
  const auto total = sum_over_ranks(sums, mesh).cpu();
  const double tokens = total[1].item<double>();
  return {.loss = total[0].item<double>() / std::max(1.0, tokens),
          .tokens = std::llround(tokens)};
}

}  // namespace tessera::train
