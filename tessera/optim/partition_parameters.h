// Which rank keeps the optimizer state of which parameter. Pure: sizes only.
//
//   one group of 5, 3, 9, 1, 4, 4 elements on two ranks
//   rank 0 | 9         | 4    |       13
//   rank 1 | 5    | 4 | 3  |1 |       13
//
// Whole parameters, never slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

/// Of one parameter group, for each rank: places in the group, in the order in
/// which they were given out.
using GroupPartition = std::vector<std::vector<size_t>>;

/// Goes through each group from the largest parameter to the smallest (equal
/// ones in their order) and gives it to the rank that has the fewest elements
/// so far, of all groups; of several, to the lowest. What comes in later groups
/// does not change earlier ones.
///
/// numels:  of each group, the elements of its parameters.
/// Returns: one partition for each group. Every rank finds the same.
/// Errors:  InvalidArgument for num_ranks < 1 or a negative number of elements.
/// Cost:    O(n (log n + num_ranks)).
/// Source:  the partition of torch.distributed.optim.ZeroRedundancyOptimizer.
[[nodiscard]] std::vector<GroupPartition> partition_parameters(
    const std::vector<std::vector<int64_t>>& numels, int num_ranks);

}  // namespace tessera
