// What no MixedPrecisionPolicy can do, refused before anything is changed; and
// what is seldom meant.
#pragma once

#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/options.h"

namespace tessera {

/// Dtypes in which nothing can be computed, summed or given back. Errors:
/// InvalidArgument.
void check_policy(const MixedPrecisionPolicy& policy);

/// A BatchNorm that keeps running statistics takes no parameters of another
/// dtype than these have. Errors: Unsupported, with the remedy.
void check_precision(const std::vector<FoundParameter>& parameters,
                     const MixedPrecisionPolicy& policy);

/// Warns, once in a process for each name, of trainable parameters that are
/// stored in less than 32 bits under a policy with a param_dtype: the optimizer
/// steps them as they are stored, so that small updates are lost.
void warn_of_low_masters(const std::vector<FoundParameter>& parameters,
                         const MixedPrecisionPolicy& policy);

/// Errors: InvalidArgument for a GatherCopy that gathers would not send.
void check_gather_copy(const FullyShardOptions& options);

}  // namespace tessera
