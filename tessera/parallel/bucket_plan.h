// Which gradients travel together: buckets of about one size, so that the first
// leave while backward still computes the others.
//
//   items in the order in which their gradients come:  a 3  b 9  c 30  d 2
//   caps of 10 and 25                                  | a b | c     | d |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

struct BucketItem {
  int64_t bytes = 0;
  int64_t kind = 0;  // items of unlike kinds never share a bucket
};

struct BucketCaps {
  int64_t first_bytes = 0;  // small: it leaves early
  int64_t rest_bytes = 0;
};

/// order: positions in `items`, each once. A bucket ends with the item that
/// brings it to its cap; each kind has a first bucket. Returns: positions,
/// bucket by bucket in the order in which they are full; what is left over
/// comes last, by the order of first items.
/// Source of the rule: PyTorch's DistributedDataParallel.
[[nodiscard]] std::vector<std::vector<size_t>> plan_buckets(
    std::span<const BucketItem> items, std::span<const size_t> order,
    const BucketCaps& caps);

}  // namespace tessera
