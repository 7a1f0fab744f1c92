// A TCP port that nobody else is given while this object lives, and on which
// rank 0 can nevertheless listen.
//
// The socket is bound, with SO_REUSEADDR, but never listens. Linux then gives
// the port to no bind to port 0 and to no outgoing connection, while a program
// that asks for this very port with SO_REUSEADDR (LibTorch's TCPStore does)
// gets it, and may listen. So there is no moment in which the port is free, and
// the rank needs to know nothing about it.
#pragma once

#include "cli/launch/file_descriptor.h"

namespace tessera::launch {

class ReservedPort {
 public:
  /// Errors: LaunchError (kExitLauncher) when the system has no port left.
  ReservedPort();

  [[nodiscard]] int number() const { return number_; }

 private:
  FileDescriptor socket_;
  int number_ = 0;
};

}  // namespace tessera::launch
