// The norms of a group's gradients, kept in its master.
#pragma once

#include "tessera/shard/parameter_group.h"

namespace tessera {

/// Keeps the norms of the shards' gradients where they lie: those that were
/// taken behind the sums, and the others, which the current stream is asked
/// for. None without gradients.
void keep_norms(ParameterGroup& group);

/// Whether a post-accumulate hook of a shard has seen its gradient, and may
/// have begun work on it that nobody has waited for.
[[nodiscard]] bool has_hook_behind_a_gradient(const ParameterGroup& group);

}  // namespace tessera
