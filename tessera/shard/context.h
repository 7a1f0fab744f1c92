// What the units of one tree share: where the forward is, the backward pass
// under way, and the order of collectives.
//
// Forward. A stack of active units mirrors module calls: touching unit U pops
// and reshards every unit on top that is not an ancestor of U.
//
// Backward. The first touch queues a callback at the end of the pass. Gathers
// come on touch. Four rules keep ranks together when they use different
// parameters inside a unit: reductions leave in one fixed order on all ranks;
// every trainable unit that took part is reduced; on a communicator of their
// own, waited for at the end only; and how many ranks had a gradient for a
// parameter decides whether its shard gets one.
//
// Threads: one thread at a time may run operators of the tree (backward on CUDA
// is the engine's thread while the caller waits); another one is an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tessera/shard/gather_ahead.h"
#include "tessera/shard/gradient_memory.h"
#include "tessera/shard/parameter_group.h"
#include "tessera/shard/unit.h"

namespace tessera {

class ShardContext : public std::enable_shared_from_this<ShardContext> {
 public:
  explicit ShardContext(std::shared_ptr<const ShardLanes> lanes)
      : lanes_(std::move(lanes)) {}

  [[nodiscard]] const std::shared_ptr<const ShardLanes>& lanes() const {
    return lanes_;
  }
  /// Of the same ranks: other streams.
  void set_lanes(std::shared_ptr<const ShardLanes> lanes);
  /// Units in registration order.
  [[nodiscard]] const std::vector<Unit*>& units() const { return units_; }
  void add(Unit& unit);
  void remove(Unit& unit) noexcept;
  /// Takes over the units of another tree that now lies below this one.
  void absorb(ShardContext& other);

  // An operator reads parameters of `unit`.
  void enter(Unit& unit, const OperatorUse& use);
  void leave() noexcept;

  /// Forward is through with the unit: it is freed, unless it is kept, or
  /// backward would gather it again at once.
  void leave_forward(Unit& unit);

  /// For explicit calls outside of operators (`reshard(module)`, errors): the
  /// stack forgets `unit`.
  void forget(Unit& unit);

  // Backward.
  void ensure_backward();
  /// A unit took part in the pass: it will be reduced.
  void note_part(Unit& unit);
  void note_gather(Unit& unit);
  /// A gradient of any unit has come.
  void note_gradient();
  void issue_reductions();
  /// Backward awaits nothing more of the unit: gathers that are late behind it
  /// start.
  void start_late_gathers(const Unit& unit) { gathers_.start_late(unit); }
  [[nodiscard]] bool backward_running() const { return backward_running_; }

 private:
  enum class Issue { complete, all };

  void touch_forward(Unit& unit, const OperatorUse& use);
  void touch_backward(Unit& unit, const OperatorUse& use);
  void check_before_backward(Unit& unit);
  void note_read(Unit& unit);
  void release_others(Unit& unit, const OperatorUse& use);
  void issue_reductions(Issue which);
  void go_on_with_reductions();
  void finish_backward();
  void abandon_backward() noexcept;
  [[nodiscard]] GradientFlags agree_on_gradients();
  [[nodiscard]] std::vector<Unit*> reduction_order() const;

  std::shared_ptr<const ShardLanes> lanes_;
  std::vector<Unit*> units_;
  std::vector<Unit*> stack_;
  // Off the stack, but kept for an operator that reads several units.
  std::vector<Unit*> strays_;
  GatherAhead gathers_{units_};
  GradientMemory memory_;
  Unit* backward_unit_ = nullptr;
  bool backward_running_ = false;
  // The reduction begun last was of a small unit: the others' go on with the
  // next gradient.
  bool others_may_go_on_ = false;
  int64_t num_first_gathers_ = 0;
  int64_t gathers_since_check_ = 0;
  // The thread that runs operators of the tree, or none, and how many are under
  // way there, one inside another.
  std::atomic<std::thread::id> thread_{};
  int running_ = 0;
};

}  // namespace tessera
