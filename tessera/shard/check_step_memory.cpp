#include "tessera/shard/check_step_memory.h"

#include "tessera/base/error.h"

namespace tessera {

void check_step_memory(const StepMemory& step) {
  const size_t count = step.units.size();
  for (const UnitMemory& unit : step.units) {
    require(!unit.parent || *unit.parent < count, [&] {
      return str("resident_bytes: no unit ", *unit.parent, " among ", count,
                 " to be a parent; count from 0.");
    });
  }
  for (const UnitVisit& visit : step.visits) {
    require(visit.unit < count, [&] {
      return str("resident_bytes: no unit ", visit.unit, " among ", count,
                 " to be visited; count from 0.");
    });
  }
}

}  // namespace tessera
