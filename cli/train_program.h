// What `train`, `generate` and `eval` have in common: a world, and errors that
// one rank reports for all.
#pragma once

#include <functional>
#include <string_view>

#include "tessera/comm/world.h"

namespace tessera::cli {

/// Joins the job and runs `body`, whose exit code it returns.
///
/// read:    reads config and files, before anything is connected. What it
///          raises on some rank ends all ranks, reported once.
/// options: asked after `read`.
/// Errors, of `body` too, become one sentence on standard error and the exit
/// code of train::ExitCode.
[[nodiscard]] int run_on_world(std::string_view command,
                               const std::function<void()>& read,
                               const std::function<InitOptions()>& options,
                               const std::function<int(const World&)>& body);

}  // namespace tessera::cli
