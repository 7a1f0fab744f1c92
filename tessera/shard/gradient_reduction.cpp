#include "tessera/shard/gradient_reduction.h"

#include <ATen/ops/empty.h>

#include <exception>
#include <utility>
#include <vector>

#include "tessera/shard/below.h"
#include "tessera/shard/gradient_norms.h"

namespace tessera {

GradientReduction::GradientReduction(std::shared_ptr<const GroupPlan> plan,
                                     ReductionInput input, OutputMemory memory,
                                     ReduceOp op, const CallLabel& label)
    : plan_(std::move(plan)),
      input_(std::move(input)),
      compute_stream_(current_stream(plan_->lanes->device)),
      divided_(op == ReduceOp::avg) {
  const bool in_place = plan_->layout.world_size() == 1;
  const bool of_compute = memory == OutputMemory::compute_stream;
  if (in_place) output_ = input_.whole;
  if (!in_place && of_compute) output_ = new_output();
  // What the compute stream did with the memory is behind it, too.
  StreamEvent ready;
  ready.record(compute_stream_);
  ready.block(plan_->lanes->reduce_stream);
  on(plan_->lanes->reduce_stream, first_done_, [&] {
    if (!in_place && !of_compute) output_ = new_output();
    if (!in_place) zero_gaps();
    pending_ = start_first_step(op, label);
  });
}

// Where it throws, the memory goes back to the compute stream at once, while
// the stream may be at work on it.
void GradientReduction::on(const c10::Stream& stream, StreamEvent& done,
                           const std::function<void()>& work) {
  const StreamScope scope(stream);
  try {
    work();
  } catch (...) {
    done.record(stream);
    done.block(compute_stream_);
    throw;
  }
  done.record(stream);
}

at::Tensor GradientReduction::new_output() const {
  return at::empty({plan_->layout.shard_numel()},
                   at::TensorOptions(plan_->options.reduce_dtype)
                       .device(plan_->lanes->device));
}

// Gaps between the buffers hold zeros.
void GradientReduction::zero_gaps() const {
  int64_t covered = 0;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    covered += buffer.shard_numel;
  }
  if (covered != output_.numel()) output_.zero_();
}

Pending GradientReduction::start_first_step(ReduceOp op,
                                            const CallLabel& label) {
  const ShardLanes& lanes = *plan_->lanes;
  if (lanes.size() == 1) return {};
  if (plan_->options.strategy == Strategy::replicate) {
    return lanes.reduce->all_reduce(output_, ReduceOp::sum, label);
  }
  if (input_.in_pieces()) return sum_pieces(op, label);
  std::vector<ReduceCall> calls;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    calls.push_back(
        {output_.narrow(0, buffer.shard_offset, buffer.shard_numel),
         input_.whole.narrow(0, buffer.full_offset,
                             buffer.shard_numel * plan_->layout.world_size())});
  }
  if (plan_->reduce_scatter) {
    return plan_->reduce_scatter->start(calls, *lanes.reduce, label);
  }
  return lanes.reduce->reduce_scatter(calls, label, op);
}

Pending GradientReduction::sum_pieces(ReduceOp op, const CallLabel& label) {
  std::vector<PiecewiseReduceCall> calls;
  for (const FlatBuffer& buffer : plan_->layout.buffers()) {
    PiecewiseReduceCall call{
        .output = output_.narrow(0, buffer.shard_offset, buffer.shard_numel),
        .dtype = input_.dtype,
        .pieces = {}};
    const int64_t end =
        buffer.full_offset + buffer.shard_numel * plan_->layout.world_size();
    for (const InputPiece& piece : input_.pieces) {
      if (piece.offset < buffer.full_offset || piece.offset >= end) continue;
      call.pieces.push_back({piece.values, piece.offset - buffer.full_offset});
    }
    calls.push_back(std::move(call));
  }
  return plan_->lanes->reduce->reduce_scatter_pieces(calls, label, op);
}

void GradientReduction::sum_over_replicas(const at::Tensor& earlier,
                                          const CallLabel& label) {
  const ShardLanes& lanes = *plan_->lanes;
  if (second_started_ || !lanes.all_reduce) return;
  Below below;
  second_started_ = true;
  pending_.wait();
  first_done_.block(lanes.all_reduce_stream);
  on(lanes.all_reduce_stream, second_done_, [&] {
    if (earlier.defined()) {
      earlier_ = earlier;
      output_.add_(earlier_);
    }
    pending_ = lanes.all_reduce->all_reduce(output_, ReduceOp::sum, label);
  });
}

const c10::Stream& GradientReduction::last_stream() const {
  return second_started_ ? plan_->lanes->all_reduce_stream
                         : plan_->lanes->reduce_stream;
}

void GradientReduction::divide(double factor) {
  const ShardLanes& lanes = *plan_->lanes;
  const bool would_wait = lanes.device.is_cpu() && lanes.num_ranks() > 1;
  if (would_wait || plan_->reduce_scatter || divided_) return;
  Below below;
  divided_ = true;
  if (factor == 1) return;
  StreamScope scope(last_stream());
  output_.div_(factor);
  (second_started_ ? second_done_ : first_done_).record(last_stream());
}

void GradientReduction::take_norms(const std::vector<FlatPiece>& parts) {
  if (!divided_ || std::exchange(asked_for_norms_, true)) return;
  if (parts.empty()) return;
  Below below;
  on(last_stream(), norms_done_, [&] { norms_ = norms_of(output_, parts); });
}

void GradientReduction::free_input() {
  const bool freed = input_.in_pieces() && input_.pieces.empty();
  if (plan_->lanes->device.is_cpu() || freed) return;
  // The compute stream may hand the memory out again from here on.
  first_done_.block(current_stream(plan_->lanes->device));
  input_ = {};
}

void GradientReduction::copy_to_host() {
  const ShardLanes& lanes = *plan_->lanes;
  if (!plan_->options.offload || lanes.device.is_cpu() || on_host_.defined()) {
    return;
  }
  Below below;
  StreamScope scope(last_stream());
  on_host_ = at::empty(output_.sizes(),
                       output_.options().device(c10::kCPU).pinned_memory(
                           plan_->options.offload->pin_memory));
  on_host_.copy_(output_, /*non_blocking=*/true);
  copied_.record(last_stream());
}

at::Tensor GradientReduction::wait() {
  pending_.wait();
  if (on_host_.defined()) {
    copied_.synchronize();
    // The compute stream may hand out the device's memory again.
    wait_on(current_stream(plan_->lanes->device));
    return on_host_;
  }
  wait_on(current_stream(plan_->lanes->device));
  return output_;
}

// The stream whose memory it is waits as well, where the caller's is another.
void GradientReduction::wait_on(const c10::Stream& stream) {
  for (const c10::Stream& waiting : {stream, compute_stream_}) {
    first_done_.block(waiting);
    second_done_.block(waiting);
    norms_done_.block(waiting);
  }
}

void GradientReduction::abandon() noexcept {
  // Completed, so that peers are not left waiting, then dropped.
  try {
    (void)wait();
  } catch (const std::exception&) {
  }
}

}  // namespace tessera
