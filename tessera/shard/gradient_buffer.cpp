#include "tessera/shard/gradient_buffer.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "tessera/module/gate.h"
#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {
namespace {

// A pass over the gap and pad elements would cost more than they are worth: the
// whole input is zeroed when a parameter has no gradient or there are gaps.
int64_t parameter_numel(const FlatLayout& layout) {
  int64_t sum = 0;
  for (const auto& parameter : layout.parameters()) sum += parameter.numel;
  return sum;
}

// The power of two that a sum over `ranks` of half numbers is divided by before
// it is taken, so that neither end overflows (the rest comes after).
int64_t division_before(int64_t ranks) {
  int64_t before = 1;
  while (ranks % before == 0 && ranks / before > before) before *= 2;
  return before;
}

}  // namespace

GradientBuffer::GradientBuffer(std::shared_ptr<const GroupPlan> plan,
                               ShardSet& shards)
    : plan_(std::move(plan)), shards_(shards), held_(shards.size()) {}

void GradientBuffer::hold(size_t i, at::Tensor grad) {
  Below below;
  if (grad.is_sparse()) grad = grad.to_dense();
  if (held_[i].defined()) {
    held_[i] = held_[i] + grad;
    return;
  }
  held_[i] = std::move(grad);
  ++num_held_;
}

void GradientBuffer::settle() {
  Below below;
  for (at::Tensor& grad : held_) {
    if (grad.defined()) grad = grad.to(plan_->options.reduce_dtype);
  }
}

void GradientBuffer::drop() {
  for (at::Tensor& grad : held_) grad.reset();
  num_held_ = 0;
}

void GradientBuffer::fill(const at::Tensor& input) {
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
    to.push_back(
        input.narrow(0, place.full_offset, place.numel).view(plan_->sizes[i]));
    from.push_back(held_[i]);
  }
  if (!to.empty()) at::_foreach_copy_(to, from, /*non_blocking=*/true);
}

void GradientBuffer::start(const CallLabel& label) {
  Below below;
  const auto options =
      shards_.master()->data.options().dtype(plan_->options.reduce_dtype);
  Reduction reduction;
  reduction.input = at::empty({plan_->layout.full_numel()}, options);
  fill(reduction.input);
  drop();
  if (plan_->options.reduce_dtype == c10::kHalf) {
    reduction.input.div_(division_before(plan_->lanes->size()));
  }
  StreamEvent ready;
  if (plan_->options.strategy == Strategy::replicate ||
      plan_->layout.world_size() == 1) {
    reduction.output = reduction.input;
  } else {
    reduction.output = new_flat_grad(reduction.input);
  }
  ready.record(current_stream(plan_->lanes->device));
  ready.block(plan_->lanes->reduce_stream);
  {
    StreamScope scope(plan_->lanes->reduce_stream);
    if (plan_->layout.world_size() > 1) {
      std::vector<ReduceCall> calls;
      for (const FlatBuffer& buffer : plan_->layout.buffers()) {
        calls.push_back({reduction.output.narrow(0, buffer.shard_offset,
                                                 buffer.shard_numel),
                         reduction.input.narrow(
                             0, buffer.full_offset,
                             buffer.shard_numel * plan_->layout.world_size())});
      }
      reduction.pending = plan_->lanes->reduce->reduce_scatter(calls, label);
    } else if (plan_->lanes->size() > 1) {
      reduction.pending = plan_->lanes->reduce->all_reduce(
          reduction.output, ReduceOp::sum, label);
    }
    reduction.done.record(plan_->lanes->reduce_stream);
  }
  reductions_.push_back(std::move(reduction));
}

// The result of a reduce-scatter, in the reduce dtype. Gaps between the buffers
// hold zeros.
at::Tensor GradientBuffer::new_flat_grad(const at::Tensor& input) const {
  at::Tensor flat = at::empty({plan_->layout.shard_numel()}, input.options());
  int64_t covered = 0;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    covered += buffer.shard_numel;
  }
  if (covered != plan_->layout.shard_numel()) flat.zero_();
  return flat;
}

void GradientBuffer::divide(const at::Tensor& reduced) const {
  const int64_t ranks = plan_->lanes->size();
  if (ranks == 1) return;
  if (plan_->options.reduce_dtype != c10::kHalf) {
    reduced.div_(ranks);
    return;
  }
  reduced.div_(static_cast<double>(ranks) /
               static_cast<double>(division_before(ranks)));
}

void GradientBuffer::finish(const std::vector<bool>& had_gradient) {
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    reduction.pending.wait();
    reduction.done.block(current_stream(plan_->lanes->device));
    give_gradients(reduction.output, had_gradient);
    run_shard_hooks(had_gradient);
  }
}

void GradientBuffer::give_gradients(const at::Tensor& output,
                                    const std::vector<bool>& had_gradient) {
  const at::Tensor reduced = [&] {
    Below below;
    divide(output);
    return output.to(plan_->options.master_dtype);
  }();
  run_shard_pre_hooks(reduced, had_gradient);
  Below below;
  at::Tensor flat = shards_.master()->grad();
  if (flat.defined()) {
    add_to_flat_grad(flat, reduced);
  } else {
    flat = take_as_flat_grad(reduced);
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (had_gradient[i] && shards_[i].requires_grad())
      give_gradient(i, flat, reduced);
  }
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
    const at::Tensor piece =
        reduced.narrow(0, plan_->pieces[i].shard_offset, plan_->pieces[i].numel)
            .view(plan_->shard_sizes(i));
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
  auto* allocator = c10::GetAllocator(plan_->lanes->device.type());
  auto storage = c10::make_intrusive<GatedStorage>(
      piece.nbytes(), allocator->allocate(piece.nbytes()), allocator, nullptr,
      guard);
  at::Tensor copy =
      tensor_over(storage.get(), piece.scalar_type(), 0, piece.sizes());
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

// The output becomes the flat gradient as it is, under the gate. `reduced` and
// the result share the memory afterwards.
at::Tensor GradientBuffer::take_as_flat_grad(const at::Tensor& reduced) {
  auto* old = reduced.storage().unsafeGetStorageImpl();
  auto storage = c10::make_intrusive<GatedStorage>(
      old->nbytes(), old->set_data_ptr(no_memory(plan_->lanes->device)),
      old->allocator(), nullptr, shards_.grad_guard());
  old->set_data_ptr_noswap(
      at::DataPtr(storage->mutable_data(), plan_->lanes->device));
  const at::Tensor flat =
      tensor_over(storage.get(), plan_->options.master_dtype, 0,
                  {plan_->layout.shard_numel()});
  shards_.master()->set_grad(flat);
  return flat;
}

// A shard whose gradient was taken away or replaced since has stale numbers in
// its piece.
void GradientBuffer::add_to_flat_grad(const at::Tensor& flat,
                                      const at::Tensor& reduced) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (grad_in_place(i, flat) || plan_->pieces[i].numel == 0) continue;
    flat.narrow(0, plan_->pieces[i].shard_offset, plan_->pieces[i].numel)
        .zero_();
  }
  flat.add_(reduced);
}

bool GradientBuffer::grad_in_place(size_t i, const at::Tensor& flat) const {
  const at::Tensor& grad = shards_[i].grad();
  return grad.defined() && grad.has_storage() &&
         grad.storage().unsafeGetStorageImpl() ==
             flat.storage().unsafeGetStorageImpl();
}

// Gradients are made below autograd: Optimizer::zero_grad detaches them in
// place, which autograd refuses on views.
void GradientBuffer::give_gradient(size_t i, const at::Tensor& flat,
                                   const at::Tensor& reduced) {
  const at::Tensor& shard = shards_[i];
  at::Tensor& grad = shard.mutable_grad();
  const auto sizes = plan_->shard_sizes(i);
  if (!grad.defined()) {
    grad = tensor_over(flat.storage().unsafeGetStorageImpl(),
                       plan_->options.master_dtype,
                       plan_->pieces[i].shard_offset, sizes);
    add_gate_key(grad);
  } else if (!grad_in_place(i, flat)) {
    local(grad).add_(
        reduced.narrow(0, plan_->pieces[i].shard_offset, plan_->pieces[i].numel)
            .view(sizes));
  }
}

void GradientBuffer::free_inputs() {
  if (plan_->lanes->device.is_cpu()) return;
  for (Reduction& reduction : reductions_) {
    if (!reduction.input.defined()) continue;
    // The compute stream may hand the memory out again from here on.
    reduction.done.block(current_stream(plan_->lanes->device));
    reduction.input.reset();
  }
}

void GradientBuffer::abandon() noexcept {
  // Completed, so that peers are not left waiting, then dropped.
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    try {
      reduction.pending.wait();
    } catch (const std::exception&) {
    }
  }
  drop();
}

}  // namespace tessera
