// The collectives of a captured step, and how far the device is in them.
//
// A replay runs without the host, so nothing of it is entered in the log. Each
// captured collective is followed by a copy of its number to host memory
// instead:
//
//   capture   | gather u1 | 1 -> gather lane | gather u2 | 2 -> gather lane |
//   ... hung      a gather lane that says 1: the device waits in "gather u2"
//
// These copies go on a stream of their own, one after the other: the engine
// that copies to the host may be busy for milliseconds (module/host_offload.h),
// and neither the lane nor the compute waits for them.
//
// Inside comm, but for tessera/graph. Thread-safe: the watchdog looks while the
// training thread replays.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/comm/collective_entry.h"

namespace tessera {

class ReplayedCalls {
 public:
  /// Collectives of one communicator in a step, and communicators, beyond which
  /// a step is watched as a whole only.
  static constexpr int64_t kMostCalls = 4096;
  static constexpr int64_t kMostLanes = 16;

  /// Before a capture: forgets the one before.
  void prepare(c10::Device device);
  /// Whether a capture was begun on this rank, and so on all.
  [[nodiscard]] bool prepared() const { return prepared_; }
  /// In a capture, on the stream that it begins on: before all else, and behind
  /// all.
  void begin();
  void end();
  /// The capture failed.
  void abandon() { open_ = false; }
  /// In a capture, behind the collective, on its stream. Nothing in one that
  /// did not begin here, as of a user's own graph: the host does not see its
  /// replays.
  void note(const CollectiveEntry& entry);

  /// Before each replay.
  void launch();

  /// What the device waits for in a replay that was launched, or went on, more
  /// than `patience` ago and is not through; an entry of kind "replay" when
  /// that is no collective.
  [[nodiscard]] std::optional<CollectiveEntry> overdue(
      std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    CollectiveEntry entry;
    size_t lane;
    int64_t number;  // in its lane, from 1
  };

  [[nodiscard]] size_t lane_of(const std::string& communicator);
  [[nodiscard]] std::vector<int64_t> read() const;

  std::atomic<bool> prepared_ = false;
  std::atomic<bool> open_ = false;  // between begin and end
  std::mutex mutex_;
  std::vector<Call> calls_;  // in the order in which they were issued
  std::vector<std::string> lanes_;
  std::vector<int64_t> num_calls_;  // by lane
  at::Tensor numbers_;              // on the device: 0, 1, 2, ...
  at::Tensor zeros_;                // one for each lane
  at::Tensor replays_;              // through so far
  at::Tensor seen_;  // [kMostLanes + 1], pinned: by lane, then the replays
  std::optional<c10::Stream> notes_;  // the stream of these copies
  int64_t launched_ = 0;
  std::vector<int64_t> last_read_;
  Clock::time_point changed_;
};

}  // namespace tessera
