// Which units are gathered, and which gathers are started before their units
// are needed.
//
// Each kind of pass learns the order in which it needs units (gather_order.h);
// a unit's own lists (set_modules_to_forward_prefetch) come before what was
// learned. A unit that was expected in vain is freed again.
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

  /// Gathers what the operator `op` is about to read, and starts the gathers
  /// that the pass will want next.
  void bring(Unit& unit, Pass pass, std::string_view op);

  /// Whether its gather was started and it is still expected.
  [[nodiscard]] bool expects(const Unit& unit) const;
  /// Frees units that were expected in vain.
  void drop_expected();
  /// A backward pass is through, with all units freed.
  void end_pass();
  /// It failed: nothing is learned from it.
  void drop_pass() noexcept;
  void remove(const Unit& unit) noexcept;
  /// The list of units changes.
  void forget_orders();

 private:
  [[nodiscard]] GatherOrder& order_of(Pass pass);
  [[nodiscard]] std::vector<Unit*> next_after(const Unit& unit, Pass pass);
  [[nodiscard]] size_t index_of(const Unit& unit) const;

  const std::vector<Unit*>& units_;
  // Gathers started for units that are expected, in this order.
  std::vector<Unit*> expected_;
  GatherOrder forward_;
  GatherOrder evaluation_;
  GatherOrder backward_;
};

}  // namespace tessera
