// Parameter groups, divided among ranks: which rank steps which parameter.
#pragma once

#include <torch/optim/optimizer.h>

#include <unordered_map>
#include <vector>

#include "tessera/optim/parameter_broadcast.h"

namespace tessera {

/// By `partition_parameters`. A parameter that stands in its group several
/// times (tied) counts once.
class DividedGroups {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  DividedGroups() = default;
  DividedGroups(const Groups& groups, int num_ranks);

  /// Each once: by group, then by rank.
  [[nodiscard]] const std::vector<OwnedParameter>& parameters() const {
    return parameters_;
  }
  /// Errors: InvalidArgument for a parameter that is in no group.
  [[nodiscard]] int owner_of(const at::Tensor& parameter) const;
  /// `groups` with the parameters of `rank` alone, each as often as there.
  [[nodiscard]] Groups part_of(int rank, const Groups& groups) const;
  /// Whether `groups` has the parameters that were divided, and no others.
  [[nodiscard]] bool are(const Groups& groups) const;

  /// Looks which parameters are trained now; true when that has changed.
  bool refresh_trainable();

 private:
  std::vector<std::vector<at::Tensor>> groups_;  // as they were divided
  std::vector<OwnedParameter> parameters_;
  std::unordered_map<const c10::TensorImpl*, int> owners_;
};

}  // namespace tessera
