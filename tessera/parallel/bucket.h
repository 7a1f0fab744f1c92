// The memory of one bucket of gradients, and its way through a backward pass:
// gradients are copied in, reduced, copied back.
//
// Inside parallel only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

#include "tessera/parallel/data_parallel_options.h"
#include "tessera/parallel/gradient_bucket.h"

namespace tessera {

/// The hook that buckets go to, and what it is told.
struct HookCall {
  const CommHook& hook;
  int64_t divisor = 1;
};

class Bucket {
 public:
  /// parameters: of one dtype and device. `members` are their numbers.
  Bucket(std::vector<size_t> members, std::vector<at::Tensor> parameters,
         GradientMemory memory);

  [[nodiscard]] const std::vector<size_t>& members() const { return members_; }
  [[nodiscard]] bool started() const { return reduced_ != nullptr; }
  [[nodiscard]] bool complete() const { return num_missing_ == 0; }

  /// `num_expected`: gradients that have to come before it is complete.
  void begin_pass(size_t num_expected);
  /// One more gradient is there, on the current stream.
  void note_gradient();

  /// Copies the gradients in, zeros for those that are not there, and hands
  /// them to the hook. Errors: Unsupported for sparse gradients, and those that
  /// are to be differentiated again.
  void start(size_t index, bool is_last, const HookCall& call);
  /// The same with zeros, as of a rank that has no more batches.
  void start_with_zeros(size_t index, bool is_last, const HookCall& call);
  /// Waits, and writes the gradients of those members that `is_used` says.
  void finish(const std::vector<bool>& is_used);
  /// After a pass that failed.
  void abandon();

 private:
  [[nodiscard]] at::Tensor view_of(size_t member) const;
  void allocate();
  void copy_in();
  void hand_over(size_t index, bool is_last, const HookCall& call);
  [[nodiscard]] at::Tensor wait();
  void write_gradient(size_t member);

  std::vector<size_t> members_;
  std::vector<at::Tensor> parameters_;
  std::vector<int64_t> offsets_;
  int64_t numel_ = 0;
  GradientMemory memory_;
  at::Tensor buffer_;  // GradientMemory::own: from start to finish
  size_t num_missing_ = 0;
  std::vector<c10::Stream> streams_;  // on which gradients came
  ReducedBucket reduced_;
};

}  // namespace tessera
