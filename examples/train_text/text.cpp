#include "examples/train_text/text.h"

#include <torch/torch.h>

#include <fstream>
#include <iterator>

#include "tessera/base/error.h"

namespace train_text {

using tessera::InvalidArgument;
using tessera::require;
using tessera::str;

Text::Text(const std::string& bytes)
    : bytes_(torch::empty(static_cast<int64_t>(bytes.size()), torch::kUInt8)) {
  std::copy(bytes.begin(), bytes.end(), bytes_.data_ptr<uint8_t>());
}

Text Text::from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  require<InvalidArgument>(!bytes.empty(), [&] {
    return str("train_text: no text in '", path,
               "'. tools/fetch_corpus FOLDER makes one; name it with --data.");
  });
  return Text(bytes);
}

int64_t Text::num_windows(int64_t seq) const {
  return std::max<int64_t>(0, bytes_.numel() - 1) / seq;
}

Batch Text::batch(const std::vector<int64_t>& windows, int64_t seq) const {
  const auto rows = static_cast<int64_t>(windows.size());
  auto pair = torch::zeros({rows, seq + 1}, torch::kLong);
  auto target = pair.narrow(1, 1, seq).clone();
  for (int64_t row = 0; row < rows; ++row) {
    if (windows[row] >= num_windows(seq)) {
      target[row].fill_(kIgnored);
      continue;
    }
    pair[row].copy_(bytes_.narrow(0, windows[row] * seq, seq + 1));
    target[row].copy_(pair[row].narrow(0, 1, seq));
  }
  return {pair.narrow(1, 0, seq).contiguous(), target};
}

}  // namespace train_text
