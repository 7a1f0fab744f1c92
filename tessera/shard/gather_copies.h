// The copies of GatherCopy::kept around steps whose writes the host does not
// see: replays of a captured step.
//
//   at its capture:  kept = current_copies(model)  at the end
//   each replay:     refresh_copies(model); replay; mark_changed(model);
//                    note_current(kept)
//
// The captured step may send a copy without casting first, so the copy must be
// current when a replay begins. What the captured optimizer has kept current is
// so at the end of each replay. A sharded module outside of that model, which
// the captured step reads too, is not looked after.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/tensor/spread.h"

namespace tessera {

using FlatMasters = std::vector<std::shared_ptr<FlatMaster>>;

/// Masters of all units below whose copies are current.
[[nodiscard]] FlatMasters current_copies(torch::nn::Module& module);

/// Casts those that are not, on the current stream.
void refresh_copies(torch::nn::Module& module);

void note_current(const FlatMasters& masters);

}  // namespace tessera
