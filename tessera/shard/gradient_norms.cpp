#include "tessera/shard/gradient_norms.h"

#include <algorithm>
#include <utility>

#include "tessera/tensor/chunk_norms.h"

namespace tessera {

std::vector<FlatPiece> joined(std::vector<FlatPiece> pieces) {
  std::erase_if(pieces, [](const auto& piece) { return piece.numel == 0; });
  std::sort(pieces.begin(), pieces.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::vector<FlatPiece> runs;
  for (const FlatPiece& piece : pieces) {
    const int64_t end =
        runs.empty() ? -1 : runs.back().offset + runs.back().numel;
    if (end == piece.offset) {
      runs.back().numel += piece.numel;
    } else {
      runs.push_back(piece);
    }
  }
  return runs;
}

std::vector<NormsOfPart> norms_of(const at::Tensor& flat,
                                  const std::vector<FlatPiece>& parts) {
  std::vector<at::Tensor> values;
  for (const FlatPiece& part : parts) {
    values.push_back(flat.narrow(0, part.offset, part.numel));
  }
  auto norms = chunk_norms(values, kNormInBackward);
  std::vector<NormsOfPart> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    all.push_back({parts[i], std::move(norms[i])});
  }
  return all;
}

}  // namespace tessera
