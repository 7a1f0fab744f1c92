#include "cli/launch/outcome.h"

#include <sstream>

#include "tessera/base/error.h"

namespace tessera::launch {

std::string to_line(const Outcome& outcome) {
  return str(static_cast<int>(outcome.kind), " ", outcome.exit_code, " ",
             outcome.signal, " ", outcome.text);
}

Outcome outcome_of_line(const std::string& line) {
  std::istringstream in(line);
  int kind = -1;
  Outcome outcome;
  in >> kind >> outcome.exit_code >> outcome.signal;
  require(in && kind >= 0 && kind <= static_cast<int>(Outcome::Kind::regrouped),
          [&] { return str("not an outcome of a job: '", line, "'"); });
  outcome.kind = static_cast<Outcome::Kind>(kind);
  in.get();
  std::getline(in, outcome.text, '\0');
  return outcome;
}

}  // namespace tessera::launch
