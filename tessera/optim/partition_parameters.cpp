#include "tessera/optim/partition_parameters.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::vector<size_t> largest_first(const std::vector<int64_t>& numels) {
  std::vector<size_t> order(numels.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](size_t i) { return numels[i]; });
  return order;
}

void check(const std::vector<std::vector<int64_t>>& numels, int num_ranks) {
  require<InvalidArgument>(num_ranks >= 1, [&] {
    return str("partition_parameters: got ", num_ranks,
               " ranks; expected 1 or more.");
  });
  for (const auto& group : numels) {
    for (const int64_t numel : group) {
      require<InvalidArgument>(numel >= 0, [&] {
        return str("partition_parameters: got a parameter of ", numel,
                   " elements; expected 0 or more.");
      });
    }
  }
}

}  // namespace

std::vector<GroupPartition> partition_parameters(
    const std::vector<std::vector<int64_t>>& numels, int num_ranks) {
  check(numels, num_ranks);
  std::vector<int64_t> held(static_cast<size_t>(num_ranks), 0);
  std::vector<GroupPartition> partitions;
  for (const auto& group : numels) {
    GroupPartition& partition = partitions.emplace_back(held.size());
    for (const size_t i : largest_first(group)) {
      const auto least = std::ranges::min_element(held);
      *least += group[i];
      partition[static_cast<size_t>(least - held.begin())].push_back(i);
    }
  }
  return partitions;
}

}  // namespace tessera
