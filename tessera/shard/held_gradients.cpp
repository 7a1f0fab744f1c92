#include "tessera/shard/held_gradients.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"

namespace tessera {
namespace {

// A pass over the gap and pad elements would cost more than they are worth: the
// whole input is zeroed when a parameter has no gradient or there are gaps.
int64_t parameter_numel(const FlatLayout& layout) {
  int64_t sum = 0;
  for (const auto& parameter : layout.parameters()) sum += parameter.numel;
  return sum;
}

}  // namespace

HeldGradients::HeldGradients(std::shared_ptr<const GroupPlan> plan)
    : plan_(std::move(plan)), held_(plan_->sizes.size()) {}

void HeldGradients::hold(size_t i, at::Tensor grad) {
  Below below;
  if (grad.is_sparse()) grad = grad.to_dense();
  if (held_[i].defined()) {
    held_[i] = held_[i] + grad;
    return;
  }
  held_[i] = std::move(grad);
  ++num_held_;
}

void HeldGradients::settle() {
  Below below;
  settled_ = true;
  for (at::Tensor& grad : held_) {
    if (grad.defined()) grad = grad.to(plan_->options.reduce_dtype);
  }
}

void HeldGradients::drop() {
  for (at::Tensor& grad : held_) grad.reset();
  num_held_ = 0;
}

void HeldGradients::move_to(const at::Tensor& input) {
  if (plan_->options.debug == Debug::poison_memory) fill_unset(input);
  const bool all_covered =
      num_held_ == held_.size() &&
      parameter_numel(plan_->layout) == plan_->layout.full_numel();
  if (!all_covered) input.zero_();
  std::vector<at::Tensor> to;
  std::vector<at::Tensor> from;
  for (size_t i = 0; i < held_.size(); ++i) {
    if (!held_[i].defined() || held_[i].numel() == 0) continue;
    const auto& place = plan_->layout.parameters()[i];
    from.push_back(plan_->rows_first(i, held_[i]));
    to.push_back(input.narrow(0, place.full_offset, place.numel)
                     .view(from.back().sizes()));
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
  drop();
  settled_ = false;
}

std::vector<InputPiece> HeldGradients::take_pieces(c10::ScalarType dtype) {
  const auto options = at::TensorOptions(dtype).device(plan_->lanes->device);
  std::vector<InputPiece> pieces;
  for (size_t i = 0; i < held_.size(); ++i) {
    const auto& place = plan_->layout.parameters()[i];
    if (place.numel == 0) continue;
    at::Tensor values =
        held_[i].defined()
            ? plan_->rows_first(i, held_[i]).to(dtype).contiguous().view({-1})
            : at::zeros({place.numel}, options);
    pieces.push_back({std::move(values), place.full_offset});
  }
  std::sort(pieces.begin(), pieces.end(),
            [](const InputPiece& a, const InputPiece& b) {
              return a.offset < b.offset;
            });
  drop();
  settled_ = false;
  return pieces;
}

}  // namespace tessera
