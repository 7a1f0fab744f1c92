// Compares each collective of this rank with those of its peers before it runs.
//
//   rank 0: all_gather of 'layers.1', 4096 Float   -> first, leaves its record
//   rank 1: all_gather of 'layers.2', 4096 Float   -> differs: an error
//
// The first rank to come to the n-th call on a communicator leaves what it is
// in the store, and the others hold theirs against it. Nobody waits for
// anybody, so the mode brings no order that the job does not have. What differs
// never runs on the rank that finds it, so that no data is mixed; the price is
// two questions to the store for each call. Inside comm only.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/collective_entry.h"

namespace c10d {
class Store;
}

namespace tessera {

/// Thread-safe.
class CollectiveCheck {
 public:
  CollectiveCheck(c10::intrusive_ptr<c10d::Store> store, int rank);

  /// What differs between this call and that of the first rank, in words; empty
  /// when nothing does. `ranks` make the calls of this communicator alike.
  /// Errors: what the store throws.
  [[nodiscard]] std::optional<std::string> compare(
      const CollectiveEntry& entry, const std::vector<int>& ranks);

 private:
  [[nodiscard]] std::string next_key(const std::string& communicator,
                                     const std::vector<int>& ranks);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;  // of calls, by group
};

/// What TESSERA_CHECK_COLLECTIVES says; off when it is not set.
/// Errors: InvalidArgument for another value than "on" and "off".
[[nodiscard]] bool collective_check_wanted();

}  // namespace tessera
