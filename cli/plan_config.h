// What `tessera plan` reads of a config of `tessera train`.
#pragma once

#include <string>
#include <vector>

#include "tessera/train/plan.h"

namespace tessera::cli {

/// The model, batch and layout of the run, on options.ranks ranks.
/// Every key is read and checked as `tessera train` does it; only the token
/// file may be left out. Errors: as read_train_config and step_shape.
/// InvalidArgument for a
///         strategy other than fully_shard.
void read_plan_config(const std::string& path,
                      std::vector<std::string> overrides,
                      train::PlanOptions& options);

/// Likewise of keys alone, such as "model.preset=8b"; micro-batches stay as
/// they are.
void read_plan_keys(const std::vector<std::string>& overrides,
                    train::PlanOptions& options);

}  // namespace tessera::cli
