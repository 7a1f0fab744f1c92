// What `tessera plan` reads of a config of `tessera train`.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/plan.h"

namespace tessera::cli {

/// The model, batch, dtypes and resharding of the run, on options.ranks ranks.
/// Every key is read and checked as `tessera train` does it; only the token file
/// may be left out.
/// Errors: as read_train_config and step_shape. InvalidArgument for a
///         strategy other than fully_shard.
void read_plan_config(const std::string& path,
                      const std::vector<std::string>& overrides,
                      train::PlanOptions& options);

}  // namespace tessera::cli
