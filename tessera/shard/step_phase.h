// Which part of a training step an operator belongs to, by the thread that
// calls it. Recomputed regions (module/recompute) run their forward twice: the
// first time without grad mode, the second time inside of backward.
#pragma once

namespace tessera {

class Unit;

/// One of backward's own operators, not of a region's second run.
[[nodiscard]] bool in_backward();

/// Also true in a region's second run.
[[nodiscard]] bool backward_under_way();

/// A forward that a backward will follow.
[[nodiscard]] bool in_training();

/// Raises InvalidState when the unit's weights are not those of the forward
/// whose node runs now.
void require_unwritten(const Unit& unit);

}  // namespace tessera
