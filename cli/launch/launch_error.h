// What `tessera run` returns when it fails itself, as env, nohup and timeout
// do.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera::launch {

inline constexpr int kExitUsage = 2;            // wrong words on the line
inline constexpr int kExitLauncher = 125;       // no process, port or pipe
inline constexpr int kExitNotExecutable = 126;  // found, but cannot be started
inline constexpr int kExitCommandNotFound = 127;

/// The ranks could not be started.
class LaunchError : public Error {
 public:
  LaunchError(int exit_code, const std::string& message)
      : Error(message), exit_code_(exit_code) {}
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace tessera::launch
