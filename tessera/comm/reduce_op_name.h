// What a ReduceOp is called: in the log of collectives, and in errors.
#pragma once

#include "tessera/comm/communicator.h"

namespace tessera {

/// "sum", "min", ...
[[nodiscard]] const char* name_of(ReduceOp op);

}  // namespace tessera
