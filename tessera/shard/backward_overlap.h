// FullyShardOptions::backward_overlap. Torch-free.
#pragma once

namespace tessera {

/// What backward has of other units while it is in one.
enum class BackwardOverlap {
  full,  // the next unit's gather starts with the first read of this one; whole
         // gradients that are being summed stay until this one's are there
  // In the last third of backward, where most gradients of shards are there and
  // memory is at its peak: the gather starts with the last fifth of this unit's
  // reads, and whole gradients go behind the first sixth. Less memory by a
  // unit's full parameters and gradients, for time where a gather or a sum
  // takes longer than that part of a unit's compute. Sums only on a GPU.
  tight
};

}  // namespace tessera
