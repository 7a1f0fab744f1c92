// What no MixedPrecisionPolicy can do, refused before anything is changed.
#pragma once

#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/options.h"

namespace tessera {

/// A BatchNorm that keeps running statistics takes no parameters of another
/// dtype than these have. Errors: Unsupported, with the remedy.
void check_precision(const std::vector<FoundParameter>& parameters,
                     const MixedPrecisionPolicy& policy);

}  // namespace tessera
