// The gate: an interception of every operator that receives a gated tensor.
//
// A boxed fallback is registered for kGateKey. For full parameters it asks the
// owning unit to gather, then calls the operator again with the key excluded.
// For shards it lets elementwise operators pass and refuses the rest. Operators
// that receive no gated tensor never see it. View-annotated and metadata
// operators have a fallthrough, so they cost nothing and composites decompose
// with the key active; frequent readers have unboxed kernels.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "tessera/module/gated_storage.h"

namespace tessera {

/// Registers the gate with the dispatcher, once per process. Called by
/// `fully_shard` and `on_meta`; explicit, so that a static build keeps it.
/// Errors: InvalidState when another library has taken the key.
void install_gate();

/// While it lives, operators called by this thread do not see the gate: the
/// caller vouches that gated tensors are whole, or that their memory is not
/// read.
class GateOff {
 public:
  GateOff() : guard_(kGateKey) {}

 private:
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

/// Tells the units of full parameters among `tensors` that they will be read,
/// as an operator called `name` would. `after_read` is told at once.
void gather_for_read(at::TensorList tensors, const char* name);

}  // namespace tessera
