// Addresses "HOST:PORT", and whether they are this machine's.
#pragma once

#include <string>

namespace tessera::launch {

struct Endpoint {
  std::string host;
  int port = 0;

  [[nodiscard]] std::string text() const;
};

/// Reads "host", "host:port", "[::1]:port". Errors: InvalidArgument that names
/// `option`.
[[nodiscard]] Endpoint parse_endpoint(const std::string& option,
                                      const std::string& text,
                                      int default_port);

/// True when `host`, a name or an address, belongs to this machine: a socket
/// can be bound to it. Asks the name service.
[[nodiscard]] bool is_this_machine(const std::string& host);

/// The name of this machine.
[[nodiscard]] std::string host_name();

}  // namespace tessera::launch
