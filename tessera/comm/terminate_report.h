// Last words of a process that dies by an exception nobody catches.
#pragma once

#include <memory>

#include "tessera/comm/world.h"

namespace tessera {

/// From now on std::terminate first writes the exception and the table of all
/// ranks to standard error and tells the other ranks; then it does what it did
/// before. Gloo and NCCL throw some of their errors in threads of their own,
/// where nothing else can report them. Keeps no World alive.
void report_on_terminate(const std::shared_ptr<World::State>& state);

}  // namespace tessera
