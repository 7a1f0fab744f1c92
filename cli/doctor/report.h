// What `tessera doctor` has found: one line for each check, and what to do.
// Pure.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli::doctor {

enum class Status {
  ok,
  warning,  // works, but slower or weaker than it could
  failed,   // a job will not work like this
  skipped,  // could not be asked here; the text says why
};

struct Check {
  std::string name;
  int exit_code = 0;  // of the program, when this is the first that failed
  Status status = Status::ok;
  std::string text = "";    // what was found
  std::string remedy = "";  // what to do; "" when ok
};

struct Report {
  std::vector<Check> checks;

  /// That of the first check that failed, or 0.
  [[nodiscard]] int exit_code() const;
};

/// One or two lines for each check, in columns.
[[nodiscard]] std::string to_text(const Report& report);

/// {"exit_code": 0, "checks": [{"name", "status", "text", "remedy"}, ...]}
[[nodiscard]] std::string to_json(const Report& report);

/// A check that takes the error of `body` as its failure, with `remedy`.
template <class Body>
[[nodiscard]] Check run_check(std::string name, int exit_code,
                              std::string remedy, Body&& body) {
  Check check{.name = std::move(name), .exit_code = exit_code};
  try {
    body(check);
  } catch (const std::exception& error) {
    check.status = Status::failed;
    check.text = error.what();
    check.remedy = std::move(remedy);
  }
  return check;
}

}  // namespace tessera::cli::doctor
