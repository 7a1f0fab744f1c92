// Rank 0's whole tensors into every rank's parts.
#pragma once

#include <cstddef>

#include "tessera/state/state_dict.h"
#include "tessera/state/state_group.h"

namespace tessera {

/// Fills `target` (this rank's part, in place, converted to its dtype) from a
/// tensor of dtype `type` and of target's sizes, which rank 0 gives whole as
/// `whole`; the others give none. Collective.
///
/// Moves rows of dim 0, 64 MiB at a time (at least one row): that is all the
/// memory that it takes beside the part.
void broadcast_full(const StateGroup& group, const at::Tensor& whole,
                    c10::ScalarType type, const StateTensor& target);

}  // namespace tessera
