#include "tessera/train/token_batches.h"

#include <torch/torch.h>

#include <algorithm>

#include "tessera/train/functions.h"

namespace tessera::train {

int64_t TokenBatches::num_windows() const {
  return std::max<int64_t>(0, tokens_.numel() - 1) / seq_;
}

Batch TokenBatches::batch(std::span<const int64_t> windows) const {
  const auto rows = static_cast<int64_t>(windows.size());
  auto pair = torch::zeros({rows, seq_ + 1}, torch::kLong);
  auto target = torch::full({rows, seq_}, kNoTarget, torch::kLong);
  for (int64_t row = 0; row < rows; ++row) {
    if (windows[row] >= num_windows()) continue;
    pair[row].copy_(tokens_.narrow(0, windows[row] * seq_, seq_ + 1));
    target[row].copy_(pair[row].narrow(0, 1, seq_));
  }
  return {pair.narrow(1, 0, seq_).contiguous(), target};
}

}  // namespace tessera::train
