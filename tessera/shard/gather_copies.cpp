#include "tessera/shard/gather_copies.h"

#include "tessera/shard/below.h"
#include "tessera/shard/find_units.h"
#include "tessera/shard/unit.h"

namespace tessera {
namespace {

template <class Body>
void for_each_copy(torch::nn::Module& module, Body&& body) {
  for (const auto& unit : units_below(module)) {
    for (const auto& group : unit->groups()) {
      if (group->master()->copy.defined()) body(group->master());
    }
  }
}

}  // namespace

FlatMasters current_copies(torch::nn::Module& module) {
  FlatMasters current;
  for_each_copy(module, [&](const std::shared_ptr<FlatMaster>& master) {
    if (master->copy_is_current()) current.push_back(master);
  });
  return current;
}

void refresh_copies(torch::nn::Module& module) {
  Below below;
  for_each_copy(module, [](const std::shared_ptr<FlatMaster>& master) {
    master->refresh_copy();
  });
}

void note_current(const FlatMasters& masters) {
  for (const auto& master : masters) master->note_copy_is_current();
}

}  // namespace tessera
