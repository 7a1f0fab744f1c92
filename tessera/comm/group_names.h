// What a rank remembers of its groups. Inside comm only.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tessera/comm/backend_factory.h"

namespace tessera {

/// Names for the groups of `distributed::new_group`, and its own backends.
struct GroupNames {
  std::mutex mutex;
  int64_t next = 0;                            // of groups that all ranks make
  std::map<std::string, int64_t> uses;         // of lists of ranks, by members
  std::map<std::string, BackendMaker> makers;  // of registered backends
};

}  // namespace tessera
