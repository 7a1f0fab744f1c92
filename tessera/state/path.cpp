#include "tessera/state/path.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {

std::string key_of(const Path& path) {
  std::string key;
  for (size_t i = 0; i < path.size(); ++i) {
    if (i > 0) key += '.';
    std::visit([&](const auto& step) { key += str(step); }, path[i]);
  }
  return key;
}

Path operator/(Path path, PathStep step) {
  path.push_back(std::move(step));
  return path;
}

}  // namespace tessera
