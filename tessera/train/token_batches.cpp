#include "tessera/train/token_batches.h"

#include <torch/torch.h>

#include "tessera/train/functions.h"

namespace tessera::train {

Batch TokenBatches::batch(std::span<const int64_t> windows) const {
  const auto rows = static_cast<int64_t>(windows.size());
  auto pair = torch::zeros({rows, seq_ + 1}, torch::kLong);
  auto target = torch::full({rows, seq_}, kNoTarget, torch::kLong);
  auto* first = pair.data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    if (windows[row] >= num_windows()) continue;
    tokens_->read(windows[row] * seq_,
                  std::span(first + row * (seq_ + 1), seq_ + 1));
    target[row].copy_(pair[row].narrow(0, 1, seq_));
  }
  return {pair.narrow(1, 0, seq_).contiguous(), target};
}

}  // namespace tessera::train
