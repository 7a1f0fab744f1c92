// Which stored keys a target needs. Pure.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tessera/checkpoint/metadata.h"
#include "tessera/state/key_report.h"

namespace tessera::checkpoint {

/// A tensor of which a rank wants some boxes.
struct WantedTensor {
  std::string key = {};
  std::vector<int64_t> sizes = {};
  std::vector<Box> boxes = {};
};

using tessera::KeyReport;

/// Compares keys. Unexpected are only tensors below a name of `names` (the
/// first steps of paths): what nobody asked for is no surprise.
[[nodiscard]] KeyReport compare_keys(const Metadata& metadata,
                                     const std::vector<std::string>& wanted,
                                     const std::set<std::string>& names);

/// Errors: CheckpointError for tensors that are stored as values or with
///         another size.
void check_wanted(const Metadata& metadata, const WantedTensor& wanted);

}  // namespace tessera::checkpoint
