// All links between the GPUs of this rank's machine. Inside comm only.
//
// They live as long as their world: a peer may still read from them.
// Thread-safe but for `connect`.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/peer_link.h"

namespace tessera {

class PeerLinks {
 public:
  /// Collective. Null where the GPUs cannot reach each other; then the group's
  /// first rank says in the log that `what` goes by NCCL, and why.
  std::shared_ptr<PeerLink> connect(const PeerLink::Place& place,
                                    const PeerLink::Exchange& exchange,
                                    const std::string& what);

  /// Of any link; see PeerLink.
  [[nodiscard]] std::optional<CollectiveEntry> overdue(
      std::chrono::milliseconds patience) const;
  void before_replay(const c10::Stream& stream) const;
  void after_replay(const c10::Stream& stream) const;
  void stop() const noexcept;
  void drain() const noexcept;
  /// Keeps the mappings until the process ends: after an error of the device
  /// closing them would fail, too.
  void leak() const;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<PeerLink>> all() const;

  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<PeerLink>> links_;
};

}  // namespace tessera
