// A GradScaler in a checkpoint, under Python's names.
//
//   State state = state_of(*model, optimizer);
//   state.add("scaler", scaler_state(scaler));
#pragma once

#include <memory>

#include "tessera/optim/grad_scaler.h"
#include "tessera/state/state.h"

namespace tessera {

/// "scale", "growth_factor", "backoff_factor", "growth_interval" and
/// "_growth_tracker", as torch.amp.GradScaler has them. `scaler` must outlive
/// it, and is saved after its `update`.
/// Errors, when loaded: InvalidArgument for an entry that is missing or out of
///                      range.
[[nodiscard]] std::shared_ptr<Stateful> scaler_state(GradScaler& scaler);

}  // namespace tessera
