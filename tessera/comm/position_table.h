// Where every rank stood when a collective failed, as a table for people.
//
//     rank  seq  kind        unit      operator  bytes  state
//     0     12   all_gather  layers.1  aten::mm  4096   waiting 2.0 s
//   > 1     11   all_gather  layers.0  aten::mm  2048   finished, ...
//     2     12   all_gather  layers.1  aten::mm  4096   waiting 2.0 s
//   Out of step: rank 1.
//
// Pure: positions come as values, and travel as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/collective_entry.h"

namespace tessera {

/// The kind of the last meeting of all: who waits there will do nothing more.
inline constexpr std::string_view kGoodbye = "goodbye";

struct RankPosition {
  int rank = 0;
  bool answered = false;
  CollectiveEntry last;  // see CollectiveLog::position; without its times
  int64_t age_ms = 0;    // since CollectiveEntry::since
};

/// One line of text, and back. Errors: InvalidArgument for a broken line.
[[nodiscard]] std::string to_record(const RankPosition& position);
[[nodiscard]] RankPosition from_record(std::string_view record);

/// The ranks that did not answer, or stand elsewhere than most. Where no place
/// has most of the ranks: those that wait for nobody, else those behind, else
/// all. Empty when all stand at one place.
[[nodiscard]] std::vector<int> odd_ranks(
    std::span<const RankPosition> positions);

/// True when both ranks wait for the same call of one communicator, and mean
/// unlike calls by it: neither can ever end. Asked about ranks of one group.
[[nodiscard]] bool contradict(const RankPosition& a, const RankPosition& b);

/// The table, odd ranks marked by '>', and one sentence that names them.
[[nodiscard]] std::string position_table(
    std::span<const RankPosition> positions);

}  // namespace tessera
