// A TCP port for a job of this test alone.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <stdexcept>

namespace tessera::testing {

/// A port of 127.0.0.1 that the system gives to nobody who does not ask for it
/// by number, for as long as this process lives: a socket stays bound to it.
/// Whoever sets SO_REUSEADDR, as stores do, can listen on it.
inline int held_port() {
  const int held = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool bound =
      ::setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      ::bind(held, generic, size) == 0 &&
      ::getsockname(held, generic, &size) == 0;
  if (!bound) throw std::runtime_error("no free port");
  return ntohs(address.sin_port);
}

}  // namespace tessera::testing
