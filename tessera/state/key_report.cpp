#include "tessera/state/key_report.h"

#include <algorithm>
#include <cstddef>

#include "tessera/base/error.h"

namespace tessera {

std::string show_keys(const std::vector<std::string>& keys) {
  constexpr size_t kMostShown = 10;
  std::string out;
  for (size_t i = 0; i < std::min(keys.size(), kMostShown); ++i) {
    out += (i == 0 ? "'" : ", '") + keys[i] + "'";
  }
  if (keys.size() > kMostShown) {
    out += str(" and ", keys.size() - kMostShown, " more");
  }
  return out;
}

}  // namespace tessera
