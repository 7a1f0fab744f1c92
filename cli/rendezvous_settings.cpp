#include "cli/rendezvous_settings.h"

#include <sstream>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using std::chrono::milliseconds;

double positive_number(const std::string& entry, const std::string& value) {
  std::istringstream in(value);
  double number = 0;
  in >> number;
  require(in && in.eof() && number > 0 && number < 1e9, [&] {
    return str("--rdzv-conf has '", entry, "'; give a number above 0");
  });
  return number;
}

milliseconds seconds(const std::string& entry, const std::string& value) {
  return milliseconds(
      static_cast<long long>(positive_number(entry, value) * 1000));
}

bool truth(const std::string& entry, const std::string& value) {
  for (const char* yes : {"1", "true", "True", "yes"}) {
    if (value == yes) return true;
  }
  for (const char* no : {"0", "false", "False", "no"}) {
    if (value == no) return false;
  }
  throw InvalidArgument(str("--rdzv-conf has '", entry, "'; give 1 or 0"));
}

void take(RendezvousSettings& settings, const std::string& entry) {
  const size_t equals = entry.find('=');
  const std::string key = entry.substr(0, equals);
  const std::string value =
      equals == std::string::npos ? "" : entry.substr(equals + 1);
  if (key == "join_timeout" || key == "timeout") {
    settings.join_timeout = seconds(entry, value);
  } else if (key == "last_call_timeout") {
    settings.last_call = seconds(entry, value);
  } else if (key == "keep_alive_interval") {
    settings.keep_alive_interval = seconds(entry, value);
  } else if (key == "keep_alive_max_attempt") {
    settings.keep_alive_max_attempt =
        static_cast<int>(positive_number(entry, value));
  } else if (key == "is_host") {
    settings.is_host = truth(entry, value);
  } else {
    throw InvalidArgument(
        str("--rdzv-conf has no '", key,
            "' here; there are join_timeout "
            "(or timeout), last_call_timeout, keep_alive_interval, "
            "keep_alive_max_attempt and is_host"));
  }
}

}  // namespace

RendezvousSettings parse_rendezvous_settings(const std::string& text) {
  RendezvousSettings settings;
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    take(settings, entry);
  }
  return settings;
}

void RendezvousSettings::apply_to(launch::NodeGroupOptions& group) const {
  constexpr int kUsualAttempts = 3;
  if (join_timeout) group.join_timeout = *join_timeout;
  if (last_call) group.last_call = *last_call;
  if (keep_alive_interval) group.beat_interval = *keep_alive_interval;
  group.dead_after =
      group.beat_interval * keep_alive_max_attempt.value_or(kUsualAttempts);
}

}  // namespace tessera::cli
