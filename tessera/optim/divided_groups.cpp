#include "tessera/optim/divided_groups.h"

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/optim/partition_parameters.h"

namespace tessera {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors each_once(const Tensors& parameters) {
  Tensors distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      distinct.push_back(parameter);
    }
  }
  return distinct;
}

std::vector<int64_t> numels_of(const Tensors& parameters) {
  std::vector<int64_t> numels;
  for (const at::Tensor& parameter : parameters) {
    numels.push_back(parameter.numel());
  }
  return numels;
}

}  // namespace

DividedGroups::DividedGroups(const Groups& groups, int num_ranks) {
  std::vector<Tensors> distinct;
  std::vector<std::vector<int64_t>> numels;
  for (const auto& group : groups) {
    groups_.push_back(group.params());
    distinct.push_back(each_once(group.params()));
    numels.push_back(numels_of(distinct.back()));
  }
  const auto partitions = partition_parameters(numels, num_ranks);
  for (size_t i = 0; i < partitions.size(); ++i) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      for (const size_t at : partitions[i][static_cast<size_t>(rank)]) {
        const at::Tensor& tensor = distinct[i][at];
        parameters_.push_back({tensor, rank, tensor.requires_grad()});
        owners_.emplace(tensor.unsafeGetTensorImpl(), rank);
      }
    }
  }
}

int DividedGroups::owner_of(const at::Tensor& parameter) const {
  const auto found = owners_.find(parameter.unsafeGetTensorImpl());
  require<InvalidArgument>(found != owners_.end(), [] {
    return str(
        "ZeroRedundancyOptimizer: the parameter is in none of its groups. Give "
        "one of param_groups().");
  });
  return found->second;
}

DividedGroups::Groups DividedGroups::part_of(int rank,
                                             const Groups& groups) const {
  Groups part;
  for (const auto& group : groups) {
    Tensors own;
    for (const at::Tensor& parameter : group.params()) {
      if (owner_of(parameter) == rank) own.push_back(parameter);
    }
    part.emplace_back(std::move(own), group.options().clone());
  }
  return part;
}

bool DividedGroups::are(const Groups& groups) const {
  return std::ranges::equal(
      groups, groups_, [](const auto& group, const Tensors& before) {
        return std::ranges::equal(
            group.params(), before,
            [](const auto& a, const auto& b) { return a.is_same(b); });
      });
}

bool DividedGroups::refresh_trainable() {
  bool changed = false;
  for (OwnedParameter& parameter : parameters_) {
    const bool trainable = parameter.tensor.requires_grad();
    changed = changed || trainable != parameter.trainable;
    parameter.trainable = trainable;
  }
  return changed;
}

}  // namespace tessera
