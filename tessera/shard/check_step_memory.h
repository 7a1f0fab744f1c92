// That a step's visits and parents are of its units. Pure.
#pragma once

#include "tessera/shard/resident_bytes.h"

namespace tessera {

/// Errors: InvalidArgument that names the unit that is not there.
void check_step_memory(const StepMemory& step);

}  // namespace tessera
