// What `tessera run` returns when it fails itself. The last three are those of
// env, nohup and timeout.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera::launch {

inline constexpr int kExitUsage = 2;            // wrong words on the line
inline constexpr int kExitPortTaken = 121;      // the port asked for
inline constexpr int kExitNotMet = 122;         // the nodes did not meet
inline constexpr int kExitNodeLost = 123;       // a node went away
inline constexpr int kExitTooManyRanks = 124;   // more than limits allow
inline constexpr int kExitLauncher = 125;       // no process, file or pipe
inline constexpr int kExitNotExecutable = 126;  // found, but cannot be started
inline constexpr int kExitCommandNotFound = 127;

/// The job could not be started, or lost a node.
class LaunchError : public Error {
 public:
  LaunchError(int exit_code, const std::string& message)
      : Error(message), exit_code_(exit_code) {}
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

}  // namespace tessera::launch
