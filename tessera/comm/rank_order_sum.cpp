#include "tessera/comm/rank_order_sum.h"

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

void combine_two(at::Tensor output, const at::Tensor& left,
                 const at::Tensor& right, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      at::add_out(output, left, right);
      return;
    case ReduceOp::min:
      at::minimum_out(output, left, right);
      return;
    case ReduceOp::max:
      at::maximum_out(output, left, right);
      return;
    default:
      throw InvalidArgument("combine_in_rank_order: only sum, min and max.");
  }
}

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ||
         tensor.scalar_type() == at::kHalf;
}

// By hand, for ATen would make float32 of each piece first, in memory.
template <class T>
void sum_in_float_as(float* output, const std::vector<at::Tensor>& pieces,
                     int64_t begin, int64_t end) {
  const T* first = pieces[0].const_data_ptr<T>();
  for (int64_t i = begin; i < end; ++i) {
    output[i] = static_cast<float>(first[i]);
  }
  for (size_t p = 1; p < pieces.size(); ++p) {
    const T* piece = pieces[p].const_data_ptr<T>();
    for (int64_t i = begin; i < end; ++i) {
      output[i] += static_cast<float>(piece[i]);
    }
  }
}

void sum_in_float(const at::Tensor& output,
                  const std::vector<at::Tensor>& pieces) {
  constexpr int64_t kGrain = 32 << 10;
  auto* sum = output.mutable_data_ptr<float>();
  const bool brain = pieces[0].scalar_type() == at::kBFloat16;
  at::parallel_for(0, output.numel(), kGrain, [&](int64_t begin, int64_t end) {
    brain ? sum_in_float_as<c10::BFloat16>(sum, pieces, begin, end)
          : sum_in_float_as<c10::Half>(sum, pieces, begin, end);
  });
}

// The first write to `output` would destroy a later piece that it aliases.
std::vector<at::Tensor> without_alias(const at::Tensor& output,
                                      std::vector<at::Tensor> pieces) {
  for (size_t i = 2; i < pieces.size(); ++i) {
    if (pieces[i].data_ptr() == output.data_ptr())
      pieces[i] = pieces[i].clone();
  }
  return pieces;
}

}  // namespace

void combine_in_rank_order(const at::Tensor& output,
                           const std::vector<at::Tensor>& pieces, ReduceOp op) {
  if (output.numel() == 0) return;
  if (pieces.size() == 1) {
    if (pieces[0].data_ptr() != output.data_ptr()) output.copy_(pieces[0]);
    return;
  }
  if (output.scalar_type() == at::kFloat && is_half(pieces[0])) {
    require<InvalidArgument>(op == ReduceOp::sum, [] {
      return str("combine_in_rank_order: got an output of another dtype than ",
                 "the pieces'; only a sum has one.");
    });
    sum_in_float(output, pieces);
    return;
  }
  // Two half numbers are added in float32 by ATen itself.
  if (is_half(output) && op == ReduceOp::sum && pieces.size() > 2) {
    at::Tensor sum = pieces[0].to(at::kFloat);
    for (size_t i = 1; i < pieces.size(); ++i) sum.add_(pieces[i]);
    output.copy_(sum);
    return;
  }
  const auto safe = without_alias(output, pieces);
  combine_two(output, safe[0], safe[1], op);
  for (size_t i = 2; i < safe.size(); ++i) {
    combine_two(output, output, safe[i], op);
  }
}

}  // namespace tessera
