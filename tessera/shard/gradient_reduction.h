// One sum of a group's gradients over the ranks, in flight.
//
//   input (whole, flat) --over the shard axis--> this rank's part
//                       --over the replicate axis (HSDP)--> output
//
// With Strategy::replicate the first step is an all-reduce of the whole. Sums,
// unless the first step is asked for the mean; the caller divides a sum.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/device/stream.h"
#include "tessera/shard/group_plan.h"
#include "tessera/tensor/spread.h"

namespace tessera {

/// What is summed, in the reduce dtype or one that the reduce-scatter sums as
/// that: in one place, or where backward left it.
struct ReductionInput {
  at::Tensor whole;                // 1-D, the layout's full_numel; or undefined
  c10::ScalarType dtype;           // of the pieces
  std::vector<InputPiece> pieces;  // at their places in the full storage

  [[nodiscard]] bool in_pieces() const { return !whole.defined(); }
};

/// Whose memory the sums take. The compute stream's is what activations have
/// left; it may be freed only where that stream has waited for its users. An
/// optimizer that steps inside of backward frees on the reduce stream.
enum class OutputMemory : uint8_t { compute_stream, reduce_stream };

class GradientReduction {
 public:
  /// Starts the first step, with sum or, where a reduce-scatter of this plan
  /// has it, avg. `input` is kept until `free_input`; in pieces only for a
  /// communicator that takes them.
  GradientReduction(std::shared_ptr<const GroupPlan> plan, ReductionInput input,
                    OutputMemory memory, ReduceOp op, const CallLabel& label);

  /// Starts the second step, once; nothing without replicas. On CPU it waits
  /// for the first. `earlier`, if defined, is added to this rank's part first.
  void sum_over_replicas(const at::Tensor& earlier, const CallLabel& label);
  [[nodiscard]] bool summed_over_replicas() const { return second_started_; }

  /// Divides the output behind the steps started, on their stream. Nothing on
  /// CPU, where that would have to wait for other ranks, or after custom
  /// collectives.
  void divide(double factor);
  [[nodiscard]] bool divided() const { return divided_; }

  /// Offloaded shards: starts the copy of the output to the host, once, behind
  /// the steps started. Nothing otherwise.
  void copy_to_host();

  /// Takes the norms of these parts of the output, once, behind the steps
  /// started and on their stream; nothing before `divided`.
  void take_norms(const std::vector<FlatPiece>& parts);
  [[nodiscard]] bool asked_for_norms() const { return asked_for_norms_; }
  /// Those taken; readable once `wait` has been called.
  [[nodiscard]] std::vector<NormsOfPart>& norms() { return norms_; }

  /// On CUDA the compute stream then waits for the first step.
  void free_input();

  /// Waits, on the current stream, for the steps started, and returns what they
  /// made: 1-D, the layout's shard_numel; gaps between buffers hold zeros. It
  /// is on the host after `copy_to_host`, which this thread then waits for.
  at::Tensor wait();
  void abandon() noexcept;

 private:
  void on(const c10::Stream& stream, StreamEvent& done,
          const std::function<void()>& work);
  [[nodiscard]] at::Tensor new_output() const;
  void zero_gaps() const;
  Pending start_first_step(ReduceOp op, const CallLabel& label);
  Pending sum_pieces(ReduceOp op, const CallLabel& label);
  void wait_on(const c10::Stream& stream);
  /// Of the steps started.
  [[nodiscard]] const c10::Stream& last_stream() const;

  std::shared_ptr<const GroupPlan> plan_;
  ReductionInput input_;
  c10::Stream compute_stream_;  // current when it began
  at::Tensor output_;
  at::Tensor earlier_;  // alive until its addition has run
  Pending pending_;
  at::Tensor on_host_;
  StreamEvent copied_;
  StreamEvent first_done_;
  StreamEvent second_done_;
  bool asked_for_norms_ = false;
  std::vector<NormsOfPart> norms_;
  StreamEvent norms_done_;
  bool second_started_ = false;
  bool divided_ = false;
};

}  // namespace tessera
