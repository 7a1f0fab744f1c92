// What the ranks agreed on at the end of earlier backward passes.
//
// In a captured step (tessera/graph) nothing can be read from the device, so the
// ranks cannot ask each other. There the answer is that of the last pass in
// which this rank had gradients for the same parameters; it goes into the hash
// of this rank's collectives, and the ranks compare hashes once the step is
// captured, before anyone replays it.
#pragma once

#include <cstddef>
#include <vector>

#include "tessera/shard/rank_agreement.h"

namespace tessera {

class GradientMemory {
 public:
  /// As `agree_on_gradients`.
  /// Errors: its own; in a captured step InvalidState when this rank never had
  ///         gradients for just these parameters before.
  [[nodiscard]] GradientFlags agree(const std::vector<Unit*>& units);

  /// Keeps the newest answers; one to the same question replaces the old one.
  void remember(GradientFlags own, GradientFlags any);

  /// Errors: InvalidState when there is none.
  [[nodiscard]] const GradientFlags& recall(const GradientFlags& own) const;

 private:
  // A step has a few kinds of passes: with and without sync, say.
  static constexpr size_t kKept = 8;
  struct Answer {
    GradientFlags own;
    GradientFlags any;
  };
  std::vector<Answer> answers_;  // the newest last
};

}  // namespace tessera
