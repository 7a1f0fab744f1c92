#include "cli/launch/reserved_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

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

FileDescriptor bind_ipv6(int port) {
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(port));
  return bind_any(AF_INET6, reinterpret_cast<sockaddr*>(&address),
                  sizeof(address));
}

FileDescriptor bind_ipv4(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
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

// Both families at once where IPv6 exists, as TCPStore binds it.
FileDescriptor bind_port(int port) {
  FileDescriptor socket = bind_ipv6(port);
  const bool no_ipv6 = !socket.open() && errno == EAFNOSUPPORT;
  return no_ipv6 || (port == 0 && !socket.open()) ? bind_ipv4(port)
                                                  : std::move(socket);
}

// A name that one process of this network namespace can hold, and that goes
// with it.
FileDescriptor hold_name(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // a name after a zero byte is in no folder
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return {};
  }
  return socket;
}

}  // namespace

ReservedPort::ReservedPort() : socket_(bind_port(0)) {
  if (!socket_.open()) {
    throw LaunchError(
        kExitLauncher,
        str("cannot reserve a TCP port for rank 0: ", std::strerror(errno)));
  }
  number_ = port_of(socket_);
}

ReservedPort::ReservedPort(int number) : number_(number) {
  name_ = hold_name(str("tessera-port-", number));
  if (name_.open()) socket_ = bind_port(number);
  if (!socket_.open()) {
    throw LaunchError(
        kExitPortTaken,
        str("cannot have port ", number, ": ", std::strerror(errno),
            "; give another --master-port, or none for one that is free"));
  }
}

}  // namespace tessera::launch
