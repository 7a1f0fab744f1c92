#include "tessera/shard/gradient_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/module/gate.h"
#include "tessera/module/meta_memory.h"
#include "tessera/shard/below.h"
#include "tessera/shard/division_before.h"
#include "tessera/shard/gradient_norms.h"
#include "tessera/shard/trace_range.h"
#include "tessera/tensor/shard_tensor.h"

namespace tessera {

GradientBuffer::GradientBuffer(std::shared_ptr<const GroupPlan> plan,
                               ShardSet& shards)
    : plan_(std::move(plan)),
      shards_(shards),
      held_(plan_),
      partial_had_(shards.size(), false) {}

void GradientBuffer::start(OutputMemory memory, const CallLabel& label) {
  const TraceRange range("FSDP::post_backward_reduce", label.unit);
  Below below;
  ReductionInput input = take_input();
  reductions_.emplace_back(plan_, std::move(input), memory, reduce_op(), label);
  // On CPU it would wait for the ranks of the shard axis here and now.
  if (!plan_->lanes->device.is_cpu()) start_second_steps(label);
}

// In one place, unless they can be read where backward left them.
ReductionInput GradientBuffer::take_input() {
  const auto dtype = sent_dtype();
  const auto reduce = plan_->options.reduce_dtype;
  if (by_reduce_scatter() && reduce != c10::kHalf &&
      plan_->lanes->reduce->takes_pieces(dtype, reduce)) {
    return {.whole = {}, .dtype = dtype, .pieces = held_.take_pieces(dtype)};
  }
  const auto options = at::TensorOptions(dtype).device(plan_->lanes->device);
  const int64_t numel = plan_->layout.full_numel();
  at::Tensor whole = plan_->reduce_scatter
                         ? plan_->reduce_scatter->allocate(numel, options)
                         : at::empty({numel}, options);
  held_.move_to(whole);
  if (reduce == c10::kHalf) {
    whole.div_(division_before(plan_->lanes->num_ranks()));
  }
  return {.whole = std::move(whole), .dtype = dtype, .pieces = {}};
}

bool GradientBuffer::by_reduce_scatter() const {
  return plan_->lanes->size() > 1 && !plan_->reduce_scatter &&
         plan_->options.strategy == Strategy::shard;
}

void GradientBuffer::go_on(const CallLabel& label) {
  start_second_steps(label);
  free_inputs();
}

void GradientBuffer::free_inputs() {
  for (GradientReduction& reduction : reductions_) reduction.free_input();
}

void GradientBuffer::start_second_steps(const CallLabel& label) {
  for (GradientReduction& reduction : reductions_) {
    if (all_reduce && !reduction.summed_over_replicas()) {
      reduction.sum_over_replicas(std::exchange(partial_, {}), label);
    }
    // A hook is to see it whole and on the device.
    if (!all_reduce_hook && (all_reduce || !plan_->lanes->all_reduce)) {
      reduction.divide(divisor());
      reduction.copy_to_host();
      if (takes_norms && !reduction.asked_for_norms()) {
        reduction.take_norms(sums_become_gradients()
                                 ? joined(trainable_pieces())
                                 : std::vector<FlatPiece>());
      }
    }
  }
}

// As they are: nothing is added to them, cast or looked at first.
bool GradientBuffer::sums_become_gradients() const {
  return takes_norms && reductions_.size() == 1 && unobserved() &&
         !plan_->options.offload &&
         plan_->options.reduce_dtype == plan_->options.master_dtype &&
         !shards_.master()->grad().defined();
}

std::vector<FlatPiece> GradientBuffer::trainable_pieces() const {
  std::vector<FlatPiece> pieces;
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].requires_grad()) continue;
    pieces.push_back({plan_->pieces[i].shard_offset, plan_->pieces[i].numel});
  }
  return pieces;
}

// What was computed in 16 bits and is summed in 32 travels in 16, where the sum
// is taken so on arrival: the numbers are the same. All ranks settle alike,
// whether they hold gradients or not.
c10::ScalarType GradientBuffer::sent_dtype() const {
  const auto compute = plan_->options.compute_dtype;
  const auto reduce = plan_->options.reduce_dtype;
  return !held_.settled() && by_reduce_scatter() &&
                 plan_->lanes->reduce->sums_as(compute, reduce)
             ? compute
             : reduce;
}

// The mean is exact where the number of ranks is a power of two: what each rank
// adds is scaled by the inverse, and no bit is lost.
ReduceOp GradientBuffer::reduce_op() const {
  const ShardLanes& lanes = *plan_->lanes;
  const int64_t ranks = lanes.num_ranks();
  const bool exact = (ranks & (ranks - 1)) == 0 &&
                     plan_->options.reduce_dtype != c10::kHalf &&
                     divisor() == static_cast<double>(ranks);
  const bool alone = !lanes.all_reduce && !all_reduce_hook &&
                     !plan_->reduce_scatter &&
                     plan_->options.strategy != Strategy::replicate;
  return exact && alone && lanes.size() > 1 && lanes.reduce->has_mean()
             ? ReduceOp::avg
             : ReduceOp::sum;
}

double GradientBuffer::divisor() const {
  const int64_t ranks = plan_->lanes->num_ranks();
  double factor = divide_factor.value_or(static_cast<double>(ranks));
  if (plan_->options.reduce_dtype == c10::kHalf) {
    factor /= static_cast<double>(division_before(ranks));
  }
  return factor;
}

void GradientBuffer::finish(std::vector<bool> had_gradient,
                            const CallLabel& label) {
  go_on(label);
  const bool are_gradients = sums_become_gradients();
  for (GradientReduction& reduction : std::exchange(reductions_, {})) {
    const at::Tensor output = reduction.wait();
    if (plan_->lanes->all_reduce && !all_reduce) {
      keep_partial(output, had_gradient);
      continue;
    }
    for (size_t i = 0; i < had_gradient.size(); ++i) {
      if (partial_had_[i]) had_gradient[i] = true;
    }
    partial_had_.assign(partial_had_.size(), false);
    give_gradients(
        output,
        reduction.divided() ? std::nullopt : std::optional<double>(divisor()),
        had_gradient);
    if (are_gradients) {
      shards_.master()->keep_grad_norms(std::move(reduction.norms()));
    }
    run_shard_hooks(had_gradient);
  }
}

// Summed over the shard axis only: a later backward sums it over the replicas.
void GradientBuffer::keep_partial(const at::Tensor& output,
                                  const std::vector<bool>& had_gradient) {
  Below below;
  partial_ = partial_.defined() ? partial_ + output : output;
  for (size_t i = 0; i < had_gradient.size(); ++i) {
    if (had_gradient[i]) partial_had_[i] = true;
  }
}

void GradientBuffer::give_gradients(const at::Tensor& output,
                                    std::optional<double> divisor,
                                    const std::vector<bool>& had_gradient) {
  if (all_reduce_hook) {
    const at::NoGradGuard no_grad;
    all_reduce_hook(output);
  }
  const at::Tensor reduced = [&] {
    Below below;
    const at::Tensor sum = output.to(plan_->master_device());
    if (divisor.value_or(1) != 1) sum.div_(*divisor);
    return sum.to(plan_->options.master_dtype);
  }();
  run_shard_pre_hooks(reduced, had_gradient);
  Below below;
  shards_.master()->forget_grad_norms();
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

// The output becomes the flat gradient as it is, under the gate. `reduced` and
// the result share the memory afterwards.
at::Tensor GradientBuffer::take_as_flat_grad(const at::Tensor& reduced) {
  auto* old = reduced.storage().unsafeGetStorageImpl();
  auto storage = c10::make_intrusive<GatedStorage>(
      old->nbytes(), old->set_data_ptr(no_memory(plan_->master_device())),
      old->allocator(), nullptr, shards_.grad_guard());
  old->set_data_ptr_noswap(
      at::DataPtr(storage->mutable_data(), plan_->master_device()));
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
  if (!grad.defined()) {
    grad = shards_.master()->grad_part(plan_->pieces[i].shard_offset,
                                       plan_->shard_sizes(i),
                                       plan_->shard_strides(i));
    add_gate_key(grad);
  } else if (!grad_in_place(i, flat)) {
    local(grad).add_(plan_->piece_of(i, reduced));
  }
}

void GradientBuffer::abandon() noexcept {
  for (GradientReduction& reduction : std::exchange(reductions_, {})) {
    reduction.abandon();
  }
  drop_waiting();
}

void GradientBuffer::drop_waiting() noexcept {
  partial_.reset();
  partial_had_.assign(partial_had_.size(), false);
  held_.drop();
}

}  // namespace tessera
