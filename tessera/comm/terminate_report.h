// Last words of a process that dies by an exception nobody catches.
#pragma once

#include <memory>

#include "tessera/comm/world.h"

namespace tessera {

/// From now on std::terminate first writes the exception to the launcher's
/// error file (error_file.h); then it does what it did before.
void report_on_terminate();

/// The same, and std::terminate also writes the exception and the table of all
/// ranks to standard error and tells the other ranks. Gloo and NCCL throw some
/// of their errors in threads of their own, where nothing else can report them.
/// Keeps no World alive.
void report_on_terminate(const std::shared_ptr<World::State>& state);

}  // namespace tessera
