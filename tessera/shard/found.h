// What a fully_shard call finds below its modules.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/module/traversal.h"
#include "tessera/shard/options.h"
#include "tessera/shard/unit.h"

namespace tessera {

struct Found {
  std::vector<FoundParameter> own;   // to be sharded by this call
  std::vector<FoundParameter> tied;  // full parameters of an earlier unit
  std::vector<std::shared_ptr<Unit>> below;  // units made by earlier calls
  std::vector<FoundParameter> managed;       // their shards, for their names
};

[[nodiscard]] Found find(const std::vector<torch::nn::Module*>& modules,
                         const FullyShardOptions& options);

/// Errors: InvalidState when a unit has one of the modules, or has taken its
/// parameters with those of a module above it.
void check_not_sharded(const std::vector<torch::nn::Module*>& modules,
                       const Found& found);

/// The modules whose parameters the call takes.
[[nodiscard]] Unit::ModuleIds covered_by(
    const std::vector<torch::nn::Module*>& modules, const Found& found);

}  // namespace tessera
