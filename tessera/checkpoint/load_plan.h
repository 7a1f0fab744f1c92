// Which stored keys a target needs. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/metadata.h"

namespace tessera::checkpoint {

/// A tensor of which a rank wants some boxes.
struct WantedTensor {
  std::string key = {};
  std::vector<int64_t> sizes = {};
  std::vector<Box> boxes = {};
};

struct KeyReport {
  std::vector<std::string> missing = {};     // wanted, not stored
  std::vector<std::string> unexpected = {};  // stored, not wanted
};

/// Compares keys. Unexpected are only tensors below a name of `names` (the
/// first steps of paths): what nobody asked for is no surprise.
[[nodiscard]] KeyReport compare_keys(const Metadata& metadata,
                                     const std::vector<std::string>& wanted,
                                     const std::set<std::string>& names);

/// Errors: CheckpointError for tensors that are stored as values or with
///         another size.
void check_wanted(const Metadata& metadata, const WantedTensor& wanted);

/// "a, b, c and 12 more".
[[nodiscard]] std::string show_keys(const std::vector<std::string>& keys);

}  // namespace tessera::checkpoint
