// Texts that all ranks should have alike: where they differ, and on which
// ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The first lines that differ between rank 0 and the first rank that is unlike
/// it; `at_end` where a text has ended. Ranks are positions in the list.
struct TextDifference {
  std::string first = {}, other = {};
  int other_rank = 0;
};

/// texts: one of each rank, in lines. Nothing where all are alike.
[[nodiscard]] std::optional<TextDifference> first_difference(
    const std::vector<std::string>& texts, const char* at_end);

}  // namespace tessera
