// The order in which a pass gathers units: learned in one pass, followed in the
// next, so that a gather may start before its unit is needed. Pure.
//
//   learned   0 1 2 3
//   this pass 0 1          ahead(2) is 2 3
//   this pass 0 2          ahead(2) is nothing: the pass goes its own way
//
// It is fed with gathers only, which all ranks issue alike; so all ranks learn
// the same order.
#pragma once

#include <cstddef>
#include <vector>

namespace tessera {

class GatherOrder {
 public:
  /// This pass needed the unit now.
  void note(size_t unit);
  /// Whether the pass under way began with this unit.
  [[nodiscard]] bool began_with(size_t unit) const;
  /// What comes next, `count` units at most.
  [[nodiscard]] std::vector<size_t> ahead(size_t count) const;

  /// The pass is through: later ones follow it.
  void end_pass();
  /// The pass failed: nothing is learned from it.
  void drop_pass();
  /// The units have changed.
  void clear();

 private:
  std::vector<size_t> learned_;
  std::vector<size_t> pass_;
  bool follows_ = true;
};

}  // namespace tessera
