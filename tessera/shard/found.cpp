#include "tessera/shard/found.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/gated_storage.h"
#include "tessera/shard/find_units.h"

namespace tessera {

Found find(const std::vector<torch::nn::Module*>& modules,
           const FullyShardOptions& options) {
  Found found;
  for (FoundParameter& parameter : find_parameters(modules)) {
    const auto ignored = std::any_of(
        options.ignored_params.begin(), options.ignored_params.end(),
        [&](const at::Tensor& t) { return t.is_same(parameter.tensor); });
    if (ignored) continue;
    if (auto unit = unit_of(parameter.tensor)) {
      if (std::find(found.below.begin(), found.below.end(), unit) ==
          found.below.end()) {
        found.below.push_back(unit);
      }
      found.managed.push_back(std::move(parameter));
    } else if (const auto* storage = gated_storage_of(parameter.tensor)) {
      // A shard whose unit is gone stays as it is: no member held any of the
      // unit's parameters (all were tied to others), so nothing can read it.
      if (storage->owner()) found.tied.push_back(std::move(parameter));
    } else {
      found.own.push_back(std::move(parameter));
    }
  }
  return found;
}

void check_not_sharded(const std::vector<torch::nn::Module*>& modules,
                       const Found& found) {
  for (const auto& unit : found.below) {
    for (torch::nn::Module* module : modules) {
      const auto& taken = unit->modules();
      require<InvalidState>(
          std::find(taken.begin(), taken.end(), module) == taken.end(), [&] {
            return str("fully_shard: module '", unit->name(),
                       "' was given to fully_shard before.");
          });
      require<InvalidState>(!unit->covers(module), [&] {
        return str("fully_shard: the module of type ", module->name(),
                   " lies inside unit '", unit->name(),
                   "', which has taken its parameters already. Call "
                   "fully_shard from the bottom up: on inner modules first, on "
                   "the root last.");
      });
    }
  }
}

Unit::ModuleIds covered_by(const std::vector<torch::nn::Module*>& modules,
                           const Found& found) {
  Unit::ModuleIds covered;
  for (torch::nn::Module* root : modules) {
    for (const auto& [name, module] : named_modules(*root)) {
      const bool taken = std::any_of(
          found.below.begin(), found.below.end(),
          [&, module = module](const auto& u) { return u->covers(module); });
      if (!taken) covered.push_back(module);
    }
  }
  return covered;
}

}  // namespace tessera
