// The order in which a pass gathers units: learned in one pass, followed in the
// next, so that a gather may start before its unit is needed. Pure.
//
//   learned   0 1 2 3
//   this pass 0 1          ahead(2) is 2 3
//   this pass 0 2          ahead(2) is nothing: the pass goes its own way
//
// It is fed with gathers only, which all ranks issue alike; so all ranks learn
// the same order.
//
// Small units do not count: their use is over before a gather that began with
// it is, so one ahead of them is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// By unit.
using SmallUnits = std::vector<bool>;

/// Those that have less than a 16th of the largest one's bytes.
[[nodiscard]] SmallUnits small_units(std::span<const int64_t> bytes);

class GatherOrder {
 public:
  /// This pass needed the unit now.
  void note(size_t unit);
  /// Whether the pass under way began with this unit.
  [[nodiscard]] bool began_with(size_t unit) const;
  /// Whether the pass went as learned so far, and a third of it at most is
  /// left.
  [[nodiscard]] bool in_last_third() const;
  /// What comes next: `count` units at most, and the small ones before these.
  [[nodiscard]] std::vector<size_t> ahead(size_t count,
                                          const SmallUnits& small) const;
  /// Whether the pass went as learned so far, and `count` units at most, and
  /// small ones, are left of it.
  [[nodiscard]] bool ends_within(size_t count, const SmallUnits& small) const;
  /// Whether the unit is one of the first `count` of a pass, small ones aside.
  [[nodiscard]] bool starts_with(size_t unit, size_t count,
                                 const SmallUnits& small) const;

  /// The pass is through: later ones follow it.
  void end_pass();
  /// The pass failed: nothing is learned from it.
  void drop_pass();
  /// The units have changed.
  void clear();

 private:
  /// The first units of those from `position` on that were learned.
  [[nodiscard]] std::vector<size_t> first_from(size_t position, size_t count,
                                               const SmallUnits& small) const;

  std::vector<size_t> learned_;
  std::vector<size_t> pass_;
  bool follows_ = true;
};

}  // namespace tessera
