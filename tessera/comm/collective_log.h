// What this rank has asked of its peers, in order.
//
// One log per rank; all communicators of the rank write to it. It keeps a
// rolling hash over (kind, unit, numel, dtype, reduction, root) for each
// communicator, and the last entries for the time-out table. The hashes are
// apart because only the order within a communicator is the same on all ranks:
// where ranks use different parameters of a unit, its gradients are complete,
// hence reduced, at another place among the gathers.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/fnv_hash.h"
#include "tessera/comm/collective_entry.h"

namespace tessera {

struct CallLabel;

/// Thread-safe: the watchdog reads while the training thread writes.
class CollectiveLog {
 public:
  static constexpr size_t kKept = 64;

  /// Enters a collective and folds it into the hash. Returns its sequence.
  uint64_t enter(std::string_view communicator, std::string_view kind,
                 const CallLabel& label, int64_t numel, c10::ScalarType dtype,
                 const CallTerms& terms = {});

  /// Enters a call that stands in the table, not in the hash: one that goes
  /// through the store (barrier, exchange), or one of user code, which not all
  /// ranks need to make. Returns its sequence.
  uint64_t enter_unhashed(std::string_view communicator, std::string_view kind,
                          const CallLabel& label, int64_t numel = 0,
                          std::optional<c10::ScalarType> dtype = {},
                          const CallTerms& terms = {});

  /// Enters a call that the device makes again in a replay, as one that this
  /// rank has waited for since `entry.started`. Not hashed. Returns its
  /// sequence.
  uint64_t enter_again(CollectiveEntry entry);

  /// From here to `finish` the rank does nothing but wait for this one.
  void wait(uint64_t sequence);
  void finish(uint64_t sequence);

  /// Hash of everything entered by `enter` so far, in its order on each
  /// communicator.
  [[nodiscard]] uint64_t hash() const;
  /// For calls that were entered and never made, as of a capture that is thrown
  /// away: hashes as `hashes` gave them before.
  using Hashes = std::map<std::string, uint64_t, std::less<>>;
  [[nodiscard]] Hashes hashes() const;
  void put_back(const Hashes& hashes);
  /// Of what was entered for these communicators alone.
  [[nodiscard]] uint64_t hash(
      std::span<const std::string_view> communicators) const;
  [[nodiscard]] CollectiveEntry last() const;
  /// Empty when it is not among the last kKept.
  [[nodiscard]] CollectiveEntry at(uint64_t sequence) const;

  /// What this rank waits for; the last one when it waits for none.
  [[nodiscard]] CollectiveEntry position() const;

  /// The last kKept, oldest first.
  [[nodiscard]] std::vector<CollectiveEntry> entries() const;

  /// Where this rank is, as one line for people.
  [[nodiscard]] std::string describe() const;

 private:
  uint64_t push(CollectiveEntry entry);

  mutable std::mutex mutex_;
  uint64_t sequence_ = 0;
  uint64_t waited_ = 0;                                  // 0: waits for none
  std::map<std::string, uint64_t, std::less<>> hashes_;  // per communicator
  std::array<CollectiveEntry, kKept> ring_;
  std::map<std::string, int64_t, std::less<>> counts_;  // per communicator
};

}  // namespace tessera
