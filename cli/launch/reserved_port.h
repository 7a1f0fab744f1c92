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
  /// A port of the system's choice.
  /// Errors: LaunchError (kExitLauncher) when the system has no port left.
  ReservedPort();
  /// This port. Another ReservedPort of this machine that asks for it fails
  /// too, although neither listens.
  /// Errors: LaunchError (kExitPortTaken) when it is taken or not allowed.
  explicit ReservedPort(int number);

  [[nodiscard]] int number() const { return number_; }

 private:
  FileDescriptor socket_;
  FileDescriptor name_;  // held against others who ask for the same port
  int number_ = 0;
};

}  // namespace tessera::launch
