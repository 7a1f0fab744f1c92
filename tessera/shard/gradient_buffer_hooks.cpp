// Hooks that a program has set on shards.
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "tessera/shard/below.h"
#include "tessera/shard/gradient_buffer.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

bool GradientBuffer::unobserved() const {
  if (all_reduce_hook || (plan_->lanes->all_reduce && !all_reduce)) {
    return false;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!torch::autograd::impl::hooks(shards_[i]).empty() ||
        torch::autograd::impl::post_acc_grad_hooks(shards_[i])) {
      return false;
    }
  }
  return true;
}

// What `register_hook` set on a shard, which is not in the autograd graph: sees
// this rank's part of the reduced gradient (a copy, guarded like the shard) and
// may replace it.
void GradientBuffer::run_shard_pre_hooks(
    const at::Tensor& reduced, const std::vector<bool>& had_gradient) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    auto& hooks = torch::autograd::impl::hooks(shards_[i]);
    if (hooks.empty() || !had_gradient[i] || !shards_[i].requires_grad())
      continue;
    const at::Tensor piece = plan_->piece_of(i, reduced);
    std::vector<at::Tensor> grads = {guarded_copy(i, piece)};
    for (const auto& hook : hooks) grads = (*hook)(grads);
    Below below;
    piece.copy_(grads[0]);
  }
}

at::Tensor GradientBuffer::guarded_copy(size_t i,
                                        const at::Tensor& piece) const {
  Below below;
  auto guard = std::make_shared<ShardGuard>("gradient of the shard");
  guard->set_names({{0, piece.numel(), shards_.name(i)}});
  auto* allocator = plan_->master_allocator();
  auto storage = c10::make_intrusive<GatedStorage>(
      piece.nbytes(), allocator->allocate(piece.nbytes()), allocator, nullptr,
      guard);
  at::Tensor copy = tensor_over(storage.get(), piece.scalar_type(), 0,
                                piece.sizes(), plan_->shard_strides(i));
  copy.copy_(piece);
  add_gate_key(copy);
  return copy;
}

// Shards are not in the autograd graph: their post-accumulate hooks (an
// optimizer in backward, say) are run by hand, as FSDP2 does.
void GradientBuffer::run_shard_hooks(const std::vector<bool>& had_gradient) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!had_gradient[i] || !shards_[i].requires_grad()) continue;
    if (auto& hook = torch::autograd::impl::post_acc_grad_hooks(shards_[i])) {
      (*hook)(shards_[i]);
    }
  }
}

}  // namespace tessera
