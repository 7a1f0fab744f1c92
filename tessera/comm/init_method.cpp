#include "tessera/comm/init_method.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr int kMaxPort = 65535;

[[noreturn]] void refuse(const std::string& url, const std::string& why) {
  throw InvalidArgument(
      str("init_distributed: init_method '", url, "': ", why,
          " Forms: env://, tcp://host:port?rank=R&world_size=W, ",
          "file:///path?rank=R&world_size=W."));
}

int to_number(const std::string& url, std::string_view name,
              std::string_view text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || parsed != end || value < 0) {
    refuse(url, str(name, " is '", text, "', not a number of 0 or more."));
  }
  return value;
}

void take_query(const std::string& url, std::string_view query,
                InitMethod& method) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? "" : pair.substr(equals + 1);
    if (name == "rank") {
      method.rank = to_number(url, name, value);
    } else if (name == "world_size") {
      method.world_size = to_number(url, name, value);
    } else if (!name.empty() && name != "use_libuv") {
      refuse(url, str("there is no argument '", name, "'."));
    }
  }
}

void take_address(const std::string& url, std::string_view address,
                  InitMethod& method) {
  const size_t colon = address.rfind(':');
  const size_t bracket = address.rfind(']');
  const bool has_port = colon != std::string_view::npos &&
                        (bracket == std::string_view::npos || colon > bracket);
  if (!has_port) refuse(url, "the port is missing.");
  method.port = to_number(url, "the port", address.substr(colon + 1));
  if (method.port < 1 || method.port > kMaxPort) {
    refuse(url,
           str("the port is ", method.port, "; expected 1 to ", kMaxPort, "."));
  }
  std::string_view host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  if (host.empty()) refuse(url, "the host is missing.");
  method.host = host;
}

}  // namespace

InitMethod parse_init_method(const std::string& url) {
  InitMethod method;
  if (url.empty()) return method;
  const size_t scheme_end = url.find("://");
  if (scheme_end == std::string::npos) refuse(url, "it has no '://'.");
  const std::string scheme = url.substr(0, scheme_end);
  const std::string_view rest = std::string_view(url).substr(scheme_end + 3);
  const size_t question = rest.find('?');
  const std::string_view place = rest.substr(0, question);
  if (question != std::string_view::npos) {
    take_query(url, rest.substr(question + 1), method);
  }
  if (scheme == "env") {
    if (!place.empty()) refuse(url, "env:// names no place.");
  } else if (scheme == "tcp") {
    method.place = MeetingPlace::tcp;
    const size_t slash = place.find('/');
    take_address(url, place.substr(0, slash), method);
  } else if (scheme == "file") {
    method.place = MeetingPlace::file;
    if (!place.starts_with('/') || place.size() == 1) {
      refuse(url, "the path must begin with a slash: three slashes in all.");
    }
    method.path = place;
  } else {
    refuse(url, str("there is no way '", scheme, "://'."));
  }
  return method;
}

}  // namespace tessera
