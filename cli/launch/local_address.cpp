#include "cli/launch/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <memory>

#include "cli/launch/file_descriptor.h"
#include "tessera/base/error.h"

namespace tessera::launch {

std::string Endpoint::text() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return ipv6 ? str("[", host, "]:", port) : str(host, ":", port);
}

Endpoint parse_endpoint(const std::string& option, const std::string& text,
                        int default_port) {
  Endpoint endpoint{.host = text, .port = default_port};
  const size_t bracket = text.find(']');
  const size_t colon = text.rfind(':');
  const bool bare_ipv6 =
      bracket == std::string::npos && text.find(':') != colon;
  std::string port;
  if (colon != std::string::npos && !bare_ipv6 &&
      (bracket == std::string::npos || colon > bracket)) {
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    const char* end = port.data() + port.size();
    const auto [parsed, error] =
        std::from_chars(port.data(), end, endpoint.port);
    if (error != std::errc() || parsed != end) endpoint.port = -1;
  }
  if (endpoint.host.starts_with('[') && endpoint.host.ends_with(']')) {
    endpoint.host = endpoint.host.substr(1, endpoint.host.size() - 2);
  }
  constexpr int kMaxPort = 65535;
  require(
      !endpoint.host.empty() && endpoint.port >= 0 && endpoint.port <= kMaxPort,
      [&] {
        return str(option, " is '", text,
                   "'; give HOST:PORT with a port up to ", kMaxPort,
                   ", as in node-0:29400");
      });
  return endpoint;
}

bool is_this_machine(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found,
                                                             ::freeaddrinfo);
  for (const addrinfo* entry = found; entry; entry = entry->ai_next) {
    const FileDescriptor socket(
        ::socket(entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(socket.get(), entry->ai_addr, entry->ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace tessera::launch
