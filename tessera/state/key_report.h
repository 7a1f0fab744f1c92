// What a load found of the names that it looked for.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct KeyReport {
  std::vector<std::string> missing = {};     // wanted, not given
  std::vector<std::string> unexpected = {};  // given, not wanted
};

/// "'a', 'b', 'c' and 12 more".
[[nodiscard]] std::string show_keys(const std::vector<std::string>& keys);

}  // namespace tessera
