// One group of ranks that talk to each other, and its collectives.
//
// A Communicator wraps one c10d backend (Gloo on CPU, NCCL on CUDA). Every
// collective of a rank, on whichever communicator, is entered in the rank's
// CollectiveLog before it starts: that gives the rolling hash that is compared
// across ranks, and the table that is printed when a peer does not come.
//
// Threads: the collectives of one rank are issued by one thread at a time (the
// one that runs forward or backward).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/deferred_checks.h"

namespace tessera {

class CollectiveLog;

/// What a collective is for; stands in the time-out table and in the hash.
struct CallLabel {
  std::string_view unit = "";   // name of the unit, "" for none
  std::string_view phase = "";  // "forward", "backward", "optimizer", ...
  std::string_view op = "";     // the ATen operator that caused it, if any
};

enum class ReduceOp {
  sum,
  min,
  max,
  // Of the groups of distributed.h, and avg of a reduce_scatter that has_mean:
  avg,  // the sum, divided by the number of ranks
  product,
  band,  // bitwise and, or, exclusive or: of whole numbers
  bor,
  bxor,
  premul_sum,  // the sum of what each rank multiplies first by a factor
};

/// A collective under way. On CPU `wait` blocks until the result is there; on
/// CUDA the call was issued on the current stream and `wait` does nothing more.
class Pending {
 public:
  class Impl;

  Pending();
  explicit Pending(std::unique_ptr<Impl> impl);
  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();  // waits, and swallows errors

  /// Errors: CommError with the time-out table when a peer did not come, or
  ///         failed.
  void wait();

 private:
  std::unique_ptr<Impl> impl_;
};

/// One all-gather of several: `output` is [size * n], `input` this rank's [n],
/// of one dtype, but for what gathers_as() adds; `input` may be this rank's
/// slot of `output`.
struct GatherCall {
  at::Tensor output;
  at::Tensor input;
};

/// One reduce-scatter of several: `input` is [size * n], `output` [n].
struct ReduceCall {
  at::Tensor output;
  at::Tensor input;
};

/// A stretch of an input: contiguous, from element `offset` of the whole on.
struct InputPiece {
  at::Tensor values;
  int64_t offset = 0;
};

/// One reduce-scatter whose input, [size * n] of `dtype`, is in several places.
/// The pieces come by offset and do not overlap; all ranks have the same
/// offsets and sizes. What no piece covers is zero in the output.
struct PiecewiseReduceCall {
  at::Tensor output;
  c10::ScalarType dtype = c10::kFloat;
  std::vector<InputPiece> pieces;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual CollectiveLog& log() const = 0;
  /// Where the tensors of its collectives must be.
  [[nodiscard]] virtual c10::Device device() const = 0;

  /// Starts all calls together (one launch on NCCL).
  virtual Pending all_gather(std::span<const GatherCall> calls,
                             const CallLabel& label) = 0;

  /// Whether all_gather takes inputs of `from` for outputs of `to`, to which it
  /// then casts them on their way.
  [[nodiscard]] virtual bool gathers_as(c10::ScalarType from,
                                        c10::ScalarType to) const {
    return from == to;
  }

  /// `op` is sum or, where has_mean() says so, avg. The sum is taken in rank
  /// order on CPU, so it is the same for any backend time-out or thread
  /// schedule. Input and output are of one dtype, but for what sums_as() adds.
  virtual Pending reduce_scatter(std::span<const ReduceCall> calls,
                                 const CallLabel& label,
                                 ReduceOp op = ReduceOp::sum) = 0;

  /// Whether reduce_scatter averages without a pass over memory of its own:
  /// each rank's values, or the sum, are divided where they are at hand.
  [[nodiscard]] virtual bool has_mean() const { return false; }

  /// Whether reduce_scatter takes inputs of `from` for outputs of `to`, a wider
  /// dtype, in which it then sums.
  [[nodiscard]] virtual bool sums_as(c10::ScalarType from,
                                     c10::ScalarType to) const {
    return from == to;
  }

  /// Whether reduce_scatter_pieces is there for this device and transport. All
  /// ranks get the same answer.
  [[nodiscard]] virtual bool takes_pieces(c10::ScalarType from,
                                          c10::ScalarType to) const {
    (void)from, (void)to;
    return false;
  }

  /// As reduce_scatter. On CUDA the pieces are read where they are, so that
  /// nobody else may write to them until the call is through.
  /// Errors: Unsupported where takes_pieces says no.
  virtual Pending reduce_scatter_pieces(
      std::span<const PiecewiseReduceCall> calls, const CallLabel& label,
      ReduceOp op = ReduceOp::sum) = 0;

  /// `op` is sum, min or max.
  virtual Pending all_reduce(const at::Tensor& tensor, ReduceOp op,
                             const CallLabel& label) = 0;

  virtual Pending broadcast(const at::Tensor& tensor, int root,
                            const CallLabel& label) = 0;

  /// Returns when every rank has called it.
  virtual void barrier(const CallLabel& label) = 0;

  /// Every rank's bytes, in rank order. Goes through the store, not through the
  /// backend: for set-up and error reports, not for training steps.
  [[nodiscard]] virtual std::vector<std::string> exchange(
      std::string_view bytes, const CallLabel& label) = 0;

  /// Has `check` run by `run_due_checks`, and before this rank next meets
  /// others through the store (exchange, barrier, the end of the world), whose
  /// caller then gets its error. It must not keep a communicator alive.
  virtual void check_later(DeferredCheck check) = 0;
  /// Runs what `check_later` was given and is ready. Errors: those of the
  /// checks.
  virtual void run_due_checks() = 0;

  /// Fails this rank's world: its waits end, and the other ranks hear of it.
  /// For what the ranks cannot go on after, found when they are not all here.
  /// Errors: CommError, always, with the table of all ranks; PeerFailure when
  /// another rank failed before.
  [[noreturn]] virtual void give_up(const std::string& cause) = 0;
};

}  // namespace tessera
