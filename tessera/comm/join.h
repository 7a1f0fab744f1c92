// Ranks with unlike numbers of batches.
//
//   join({&ddp}, [&] {
//     for (auto& batch : my_batches) {
//       loss_of(ddp(batch.input), batch.target).backward();
//       optimizer.step();
//       optimizer.zero_grad();
//     }
//   });
//
// A rank whose function returns goes on with the others' collectives, without
// gradients of its own, until all are through. At the end all have the model of
// one that was there last.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/comm/process_group.h"

namespace tessera {

class JoinSession;

/// What can be joined: DistributedDataParallel, ZeroRedundancyOptimizer.
class Joinable {
 public:
  Joinable() = default;
  virtual ~Joinable() = default;
  Joinable(const Joinable&) = delete;
  Joinable& operator=(const Joinable&) = delete;

 protected:
  friend class JoinSession;

  [[nodiscard]] virtual const distributed::ProcessGroup& join_group() const = 0;
  /// Where the group's small sums may be.
  [[nodiscard]] virtual c10::Device join_device() const = 0;
  /// The collectives that follow one `note_step` of the others, by a rank that
  /// is through.
  virtual void shadow_step() = 0;
  /// When all are through. Collective. `was_last`: this rank was there in the
  /// last step.
  enum class WasLast { yes, no };
  virtual void end_join(WasLast was_last) = 0;

  /// The join that is going on, or null.
  [[nodiscard]] JoinSession* session() const { return session_; }

 private:
  JoinSession* session_ = nullptr;
};

/// What becomes of the others when one rank has no more batches.
enum class WhenOneEnds { shadow, raise };  // throw_on_early_termination: raise

/// What means over ranks divide by.
enum class JoinDivisor {
  all_ranks,     // divide_by_initial_world_size=True
  active_ranks,  // those that have batches; costs a wait a step on GPUs
};

struct JoinOptions {
  WhenOneEnds when_one_ends = WhenOneEnds::shadow;
  JoinDivisor divisor = JoinDivisor::all_ranks;
  // Called on a rank that is through, before it goes along with a step of that
  // joinable. For what the body does to gradients: a ZeroRedundancyOptimizer
  // steps this rank's parameters with what is in `.grad`, which nobody else
  // has clipped.
  std::function<void(const Joinable&)> before_shadow_step = {};
  // The same behind it. For what follows a step in the body, as a schedule does
  // whose rate that optimizer takes.
  std::function<void(const Joinable&)> after_shadow_step = {};
};

/// Calls `body` on each rank. Collective over the joinables' group.
/// Errors: InvalidArgument for no joinable, or of several groups; InvalidState
///         for one in a join already, and on all ranks with WhenOneEnds::raise;
///         whatever `body` throws.
void join(const std::vector<Joinable*>& joinables,
          const std::function<void()>& body, const JoinOptions& options = {});

/// For joinables: one join on this rank.
///
/// Before its collectives a joinable says that it is its turn; a rank that is
/// through hears whose, and goes along:
///
///   rank 0  note(ddp), sums ...  note(zero), sends ...  | through
///   rank 1  hears ddp, sums ...  hears zero, sends ...  | hears nothing
class JoinSession {
 public:
  JoinSession(const std::vector<Joinable*>& joinables,
              const JoinOptions& options);
  ~JoinSession();
  JoinSession(const JoinSession&) = delete;
  JoinSession& operator=(const JoinSession&) = delete;

  /// Errors: InvalidState as above.
  void note_step(const Joinable& joinable);
  /// The others' steps, until there are none.
  void shadow();
  /// Ranks that said the last `note_step`; waits.
  [[nodiscard]] int num_active();
  [[nodiscard]] JoinDivisor divisor() const { return options_.divisor; }

 private:
  /// The sums over the ranks of one number for each joinable.
  [[nodiscard]] at::Tensor sum_over_ranks(std::vector<int32_t> mine) const;
  [[nodiscard]] bool raises() const {
    return options_.when_one_ends == WhenOneEnds::raise;
  }
  /// Errors: InvalidState where a rank is through, on all.
  void compare_ends(int32_t mine) const;
  /// Whose turn it is, of what the ranks said; null: nobody's.
  [[nodiscard]] Joinable* whose_turn() const;

  const std::vector<Joinable*> joinables_;
  const JoinOptions options_;
  at::Tensor turns_;  // of the last note_step: how many ranks said which
};

}  // namespace tessera
