#include "cli/doctor/report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tessera::cli::doctor {
namespace {

const char* name_of(Status status) {
  switch (status) {
    case Status::ok:
      return "ok";
    case Status::warning:
      return "warning";
    case Status::failed:
      return "FAILED";
    case Status::skipped:
      return "skipped";
  }
  return "";
}

std::string indented(const std::string& text, size_t width) {
  std::string result;
  for (const char c : text) {
    result += c;
    if (c == '\n') result += std::string(width, ' ');
  }
  return result;
}

}  // namespace

int Report::exit_code() const {
  const auto failed = std::find_if(
      checks.begin(), checks.end(),
      [](const Check& check) { return check.status == Status::failed; });
  return failed == checks.end() ? 0 : failed->exit_code;
}

std::string to_text(const Report& report) {
  constexpr size_t kStatusWidth = 9;
  size_t name_width = 0;
  for (const Check& check : report.checks) {
    name_width = std::max(name_width, check.name.size() + 2);
  }
  std::ostringstream out;
  for (const Check& check : report.checks) {
    const size_t width = kStatusWidth + name_width;
    out << std::left << std::setw(kStatusWidth) << name_of(check.status)
        << std::setw(static_cast<int>(name_width)) << check.name
        << indented(check.text, width) << "\n";
    if (!check.remedy.empty()) {
      out << std::string(width, ' ') << "-> " << indented(check.remedy, width)
          << "\n";
    }
  }
  return out.str();
}

std::string to_json(const Report& report) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Check& check : report.checks) {
    std::string status = name_of(check.status);
    if (check.status == Status::failed) status = "failed";
    checks.push_back({{"name", check.name},
                      {"status", status},
                      {"text", check.text},
                      {"remedy", check.remedy}});
  }
  const nlohmann::ordered_json all = {{"exit_code", report.exit_code()},
                                      {"checks", checks}};
  // Error texts of other programs may hold any bytes.
  return all.dump(2, ' ', false,
                  nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tessera::cli::doctor
