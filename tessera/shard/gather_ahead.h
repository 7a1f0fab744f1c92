// Which units are gathered, and which gathers are started before their units
// are needed.
//
// Each kind of pass learns the order in which it needs units (gather_order.h);
// a unit's own lists (set_modules_to_forward_prefetch) come before what was
// learned. A unit that was expected in vain is freed again. The last unit of
// forward that is the first one of backward is not freed between them, when its
// gather would be started at once.
#pragma once

#include <string_view>
#include <vector>

#include "tessera/shard/gather_order.h"

namespace tessera {

class Unit;

class GatherAhead {
 public:
  enum class Pass {
    forward,     // a backward ends it
    evaluation,  // without gradients
    backward,
  };

  /// `units` is the tree's list and must outlive it.
  explicit GatherAhead(const std::vector<Unit*>& units) : units_(units) {}

  /// When the gathers start that the pass will want next.
  enum class Next {
    now,
    late_at_the_end  // in the last third of backward: with `start_late`
  };

  /// Gathers what the operator `op` is about to read.
  void bring(Unit& unit, Pass pass, std::string_view op, Next next);
  /// Whether backward is in the last third of its gathers.
  [[nodiscard]] bool in_last_third_of_backward() const {
    return backward_.in_last_third();
  }
  /// Starts those that are late behind `unit`. The next unit's gather does,
  /// too, and the end of backward: whatever a rank reads, all start them, and
  /// in one order.
  void start_late(const Unit& unit);
  void start_late();

  /// Whether backward, which comes next, begins with this unit, that forward
  /// is through with; it then stays gathered.
  [[nodiscard]] bool keep_for_backward(Unit& unit);
  /// As small_units has it.
  [[nodiscard]] bool is_small(const Unit& unit) {
    return small()[index_of(unit)];
  }
  /// Frees what forward expected in vain.
  void begin_backward();
  /// Whether its gather was started and it is still expected.
  [[nodiscard]] bool expects(const Unit& unit) const;
  /// A backward pass is through, with all units freed.
  void end_pass();
  /// It failed: nothing is learned from it.
  void drop_pass() noexcept;
  void remove(const Unit& unit) noexcept;
  /// The list of units changes.
  void forget_orders();

 private:
  void start_next(const Unit& unit, Pass pass);
  [[nodiscard]] GatherOrder& order_of(Pass pass);
  [[nodiscard]] std::vector<Unit*> next_after(const Unit& unit, Pass pass);
  [[nodiscard]] size_t index_of(const Unit& unit) const;
  [[nodiscard]] const SmallUnits& small();

  const std::vector<Unit*>& units_;
  // Gathers started for units that are expected, in this order.
  std::vector<Unit*> expected_;
  std::vector<Unit*> kept_;  // gathered from forward to backward
  const Unit* late_ = nullptr;  // behind it gathers are to be started
  SmallUnits small_;         // of units_; empty: not known yet
  GatherOrder forward_;
  GatherOrder evaluation_;
  GatherOrder backward_;
};

}  // namespace tessera
