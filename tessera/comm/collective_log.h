// What this rank has asked of its peers, in order.
//
// One log per rank (all communicators of the rank write to it, for all
// collectives of a rank have one host order). It keeps a rolling hash over
// (communicator, kind, unit, numel, dtype), and the last entries for the
// time-out table.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/comm/collective_entry.h"
#include "tessera/comm/fnv_hash.h"

namespace tessera {

struct CallLabel;

/// Thread-safe: the watchdog reads while the training thread writes.
class CollectiveLog {
 public:
  /// Enters a collective and folds it into the hash. Returns its sequence.
  uint64_t enter(std::string_view communicator, std::string_view kind,
                 const CallLabel& label, int64_t numel, c10::ScalarType dtype);

  /// Enters a call that goes through the store (barrier, exchange): it stands
  /// in the table, not in the hash. Returns its sequence.
  uint64_t enter_unhashed(std::string_view communicator, std::string_view kind,
                          const CallLabel& label);

  void finish(uint64_t sequence);

  /// Hash of everything entered by `enter` so far.
  [[nodiscard]] uint64_t hash() const;
  [[nodiscard]] CollectiveEntry last() const;
  /// Empty when it is not among the last 64.
  [[nodiscard]] CollectiveEntry at(uint64_t sequence) const;

  /// Where this rank is, as one line for the table.
  [[nodiscard]] std::string describe() const;

 private:
  uint64_t push(CollectiveEntry entry);

  mutable std::mutex mutex_;
  uint64_t sequence_ = 0;
  uint64_t hash_ = FnvHash::kStart;
  static constexpr size_t kKept = 64;
  std::array<CollectiveEntry, kKept> ring_;
};

}  // namespace tessera
