// That all ranks of a group hold like parameters, before they send them to each
// other.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

#include "tessera/comm/process_group.h"
#include "tessera/optim/parameter_broadcast.h"

namespace tessera {

/// Compares `groups` on all ranks: the number of groups, and of each parameter
/// sizes, strides, dtype, place among the devices, whether it is trained, and
/// where it stands in the list again. Collective; also proves that `group` has
/// a backend for each device.
///
/// defaults: of the optimizer; options of another type are refused.
/// Errors:   the same on all ranks, and each names the ranks.
///           InvalidArgument for lists that differ, for none at all, for a
///           tensor that is undefined, on the meta device, sparse or no leaf,
///           and for a parameter in two groups; Unsupported for shards that are
///           cut over ranks, and for parameters of `replicate` in buckets.
void agree_on_parameters(
    const distributed::ProcessGroup& group,
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    const torch::optim::OptimizerOptions& defaults, BucketView view);

}  // namespace tessera
