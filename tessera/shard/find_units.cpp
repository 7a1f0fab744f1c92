#include "tessera/shard/find_units.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/module/traversal.h"

namespace tessera {

std::shared_ptr<Unit> unit_of(const at::Tensor& shard) {
  const Spread* spread = spread_of(shard);
  if (!spread) return nullptr;
  return std::static_pointer_cast<Unit>(spread->owner.lock());
}

std::vector<std::shared_ptr<Unit>> units_below(torch::nn::Module& module) {
  std::vector<std::shared_ptr<Unit>> units;
  torch::nn::Module* const roots[] = {&module};
  for (const FoundParameter& found : find_parameters(roots)) {
    auto unit = unit_of(found.tensor);
    if (unit && std::find(units.begin(), units.end(), unit) == units.end()) {
      units.push_back(std::move(unit));
    }
  }
  return units;
}

std::vector<std::shared_ptr<Unit>> units_of(torch::nn::Module& module) {
  auto units = units_below(module);
  std::erase_if(units, [&](const auto& unit) {
    const auto& modules = unit->modules();
    return std::find(modules.begin(), modules.end(), &module) == modules.end();
  });
  return units;
}

void check_is_no_part(torch::nn::Module& module, const char* function) {
  for (const auto& unit : units_below(module)) {
    const auto& given = unit->modules();
    require<InvalidArgument>(
        !unit->covers(&module) ||
            std::find(given.begin(), given.end(), &module) != given.end(),
        [&] {
          return str(function, ": the module ", module.name(),
                     " lies inside unit '", unit->name(),
                     "', of which it is only a part. Call it with the module "
                     "that was given to fully_shard, or shard this one before "
                     "as a unit of its own.");
        });
  }
}

}  // namespace tessera
