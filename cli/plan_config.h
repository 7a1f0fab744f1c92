// What `tessera plan` reads of a config of `tessera train`.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/plan.h"

namespace tessera::cli {

/// The model, batch, dtypes and resharding of the run, on options.ranks ranks.
/// Keys that memory does not depend on are passed over; `tessera train` checks
/// them.
/// Errors: InvalidArgument with file and line; also for tokens_per_step that
///         batch, sequence and ranks do not divide. Unsupported for a strategy
///         other than fully_shard.
void read_plan_config(const std::string& path,
                      const std::vector<std::string>& overrides,
                      train::PlanOptions& options);

}  // namespace tessera::cli
