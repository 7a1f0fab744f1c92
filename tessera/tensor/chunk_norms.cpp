#include "tessera/tensor/chunk_norms.h"

#include <ATen/ops/_foreach_norm.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tessera {
namespace {

// A CPU norm adds up in fp32 lanes: over 5e7 elements it was seen 0.4 % off for
// p = 2 and 15 % for p = 1. Over this many it is right to about 1e-6.
constexpr int64_t kCpuChunk = 1 << 14;

/// Returns: how many.
size_t append_chunks(std::vector<at::Tensor>& chunks,
                     const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.numel() <= kCpuChunk ||
      !tensor.is_contiguous()) {
    chunks.push_back(tensor);
    return 1;
  }
  std::vector<at::Tensor> cut = tensor.view({-1}).split(kCpuChunk);
  for (at::Tensor& chunk : cut) chunks.push_back(std::move(chunk));
  return cut.size();
}

}  // namespace

std::vector<std::vector<at::Tensor>> chunk_norms(
    const std::vector<at::Tensor>& tensors, double p) {
  std::vector<at::Tensor> chunks;
  std::vector<size_t> num_chunks;
  for (const at::Tensor& tensor : tensors) {
    num_chunks.push_back(append_chunks(chunks, tensor));
  }
  if (chunks.empty()) return {};
  const auto dtype =
      chunks[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto all = at::_foreach_norm(chunks, p, dtype);
  std::vector<std::vector<at::Tensor>> norms;
  auto next = all.begin();
  for (const size_t count : num_chunks) {
    norms.emplace_back(next, next + static_cast<ptrdiff_t>(count));
    next += static_cast<ptrdiff_t>(count);
  }
  return norms;
}

}  // namespace tessera
