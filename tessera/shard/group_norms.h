// The norms of a group's gradients, kept in its master.
#pragma once

#include "tessera/shard/parameter_group.h"

namespace tessera {

/// Keeps the norms of the shards' gradients where they lie: those that were
/// taken behind the sums, and the others, which the current stream is asked
/// for. Nothing without gradients.
void keep_norms(ParameterGroup& group);

}  // namespace tessera
