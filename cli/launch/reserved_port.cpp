#include "cli/launch/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

void set_option(const FileDescriptor& socket, int level, int name, int value) {
  ::setsockopt(socket.get(), level, name, &value, sizeof(value));
}

FileDescriptor bind_any(int family, const sockaddr* address, socklen_t size) {
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.open()) return {};
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(socket.get(), address, size) != 0) return {};
  return socket;
}

FileDescriptor bind_ipv6() {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  return bind_any(AF_INET6, reinterpret_cast<sockaddr*>(&address),
                  sizeof(address));
}

FileDescriptor bind_ipv4() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  return bind_any(AF_INET, reinterpret_cast<sockaddr*>(&address),
                  sizeof(address));
}

int port_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

}  // namespace

// Both families at once where IPv6 exists, as TCPStore binds it.
ReservedPort::ReservedPort() : socket_(bind_ipv6()) {
  if (!socket_.open()) socket_ = bind_ipv4();
  if (!socket_.open()) {
    throw LaunchError(
        kExitLauncher,
        str("cannot reserve a TCP port for rank 0: ", std::strerror(errno)));
  }
  number_ = port_of(socket_);
}

}  // namespace tessera::launch
