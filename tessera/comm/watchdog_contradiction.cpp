// Two ranks that wait for each other in unlike collectives, found before the
// time-out.
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/position_table.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/watchdog_keys.h"

namespace tessera {
namespace {

constexpr int kPollsToStall = 10;

}  // namespace

void Watchdog::look_for_contradiction() {
  const RankPosition own = position();
  const bool stalls = own.last.waited && !own.last.finished &&
                      own.age_ms > kPollsToStall * options_.poll.count();
  const bool stalled_before = std::exchange(stalled_, stalls);
  if (stalls && !stalled_before) {
    watch_store_.set(stall_key(rank_), to_record(own));
  }
  if (!stalls && stalled_before) watch_store_.delete_key(stall_key(rank_));
  if (!stalls) return;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || !calls_.has_peer(own.last.communicator, rank) ||
        !watch_store_.check(stall_key(rank))) {
      continue;
    }
    const RankPosition other = from_record(watch_store_.get(stall_key(rank)));
    if (contradict(own, other)) {
      report_contradiction(own, other);
      return;
    }
  }
}

void Watchdog::report_contradiction(const RankPosition& own,
                                    const RankPosition& other) {
  const auto describe = [](const RankPosition& position) {
    const CollectiveEntry& call = position.last;
    return str("rank ", position.rank, " waits in ", call.kind, " of unit '",
               call.unit, "' (", call.numel, " ", call.dtype, " elements)");
  };
  // Before the connections close: the other rank looks for it then.
  watch_store_.set(kContradiction,
                   str(describe(own), ", but ", describe(other), "."));
  calls_.end_waits();
}

std::optional<std::string> Watchdog::contradiction() noexcept {
  try {
    if (!store_.check(kContradiction)) return std::nullopt;
    return store_.get(kContradiction);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace tessera
