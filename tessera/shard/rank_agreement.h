// What the ranks tell each other at the end of a backward pass, in one small
// sum: the hash of each rank's collectives so far, and how many ranks had a
// gradient for each parameter.
//
//   | hash of rank 0 | hash of rank 1 | ... | count | count | count ...
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/shard/lanes.h"

namespace tessera {

class Unit;

/// For each unit, group and parameter, whether there was a gradient.
using GradientFlags = std::vector<std::vector<std::vector<bool>>>;

/// A collective of all ranks of the units' meshes, one agreement for each mesh.
/// Returns, in the order of `units`, which parameters had a gradient on some
/// rank. On a device, a rank that has all gradients itself does not wait for
/// the others' answer: the hashes are compared by the next agreement, or
/// before (DeferredChecks).
/// Errors: CommError when the ranks' collectives differed.
[[nodiscard]] GradientFlags agree_on_gradients(const std::vector<Unit*>& units);

}  // namespace tessera
