#include "examples/train_text/evaluate.h"

#include <torch/torch.h>

#include <algorithm>

#include "examples/train_text/ranks.h"

namespace train_text {

double held_out_loss(Llama& model, const Text& text,
                     const tessera::DeviceMesh& mesh,
                     const EvaluateOptions& options) {
  const torch::NoGradGuard no_grad;
  const int64_t all = text.num_windows(options.seq);
  const int64_t taken =
      options.max_windows < 0 ? all : std::min(all, options.max_windows);
  const int64_t stride =
      std::max<int64_t>(1, all / std::max<int64_t>(1, taken));
  const int64_t step = options.batch * mesh.numel();

  auto sum_and_count = torch::zeros(2, torch::kDouble);
  for (int64_t first = 0; first < taken; first += step) {
    std::vector<int64_t> windows(options.batch);
    for (int64_t row = 0; row < options.batch; ++row) {
      const int64_t i = first + mesh.world().rank() * options.batch + row;
      windows[row] = i < taken ? i * stride : all;
    }
    const Batch batch = text.batch(windows, options.seq);
    const auto logits = model(batch.input.to(mesh.device()));
    const auto loss = torch::nn::functional::cross_entropy(
        logits.flatten(0, 1).to(torch::kFloat),
        batch.target.to(mesh.device()).flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(
            torch::kSum));
    sum_and_count[0] += loss.item<double>();
    sum_and_count[1] += batch.target.ne(Text::kIgnored).sum();
  }
  const auto total = sum_over_ranks(sum_and_count, mesh);
  return (total[0] / total[1]).item<double>();
}

}  // namespace train_text
