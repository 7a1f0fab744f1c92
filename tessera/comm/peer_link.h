// Gathers and sums between the GPUs of one machine by their copy engines,
// beside the compute instead of on its processors. Inside comm only.
//
// Each rank has a window: device memory that the others have mapped, in two
// halves that rounds take in turn. A round is two moves and a meeting of all
// ranks on their streams, which the host does not wait for:
//
//   all_gather      own part -> own window, meet, others' windows -> output;
//                   one that is cast is written to the output and the window
//                   in one pass
//   reduce_scatter  each part -> its owner's window, meet, sum -> output
//
// The input of a sum is read where its pieces are; what none covers is left out
// of the copies and zero in the output.
//
// Who has met for round n+1 has done all of round n, so the half that round n
// used is free for round n+2: no other word is needed. The rounds of a captured
// graph keep their halves in each replay; so a meeting of its own precedes the
// first call of a capture and, once replays may come, each call outside of one.
//
// A graph of the user's own is not seen: its replays must be ordered with other
// calls on the streams.
//
// Errors of these functions: c10::Error of the driver.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/collective_entry.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/peer_rounds.h"
#include "tessera/device/stream.h"

namespace tessera {

class PeerLink {
 public:
  /// Every rank's bytes, in rank order. Collective, waits on the host.
  using Exchange =
      std::function<std::vector<std::string>(std::string_view bytes)>;

  struct Place {
    int rank = 0;
    int size = 1;
    c10::Device device = c10::kCPU;
    int64_t window_mib = kPeerWindowMib;  // the same on all ranks
  };

  /// Collective. Null where the ranks cannot reach each other's memory; `why`
  /// then says in words which ones, the same on all ranks. Errors: those of
  /// `exchange`.
  [[nodiscard]] static std::shared_ptr<PeerLink> connect(
      const Place& place, const Exchange& exchange, std::string& why);

  virtual ~PeerLink() = default;

  /// Whether the sum of these has a kernel.
  [[nodiscard]] virtual bool sums(c10::ScalarType from,
                                  c10::ScalarType to) const = 0;

  /// Whether a gather casts so.
  [[nodiscard]] virtual bool casts(c10::ScalarType from,
                                   c10::ScalarType to) const = 0;

  /// On the current stream. Inputs are of the outputs' dtypes, or are cast.
  virtual void all_gather(std::span<const GatherCall> calls) = 0;
  /// The output is of the input's dtype, or float32. The sum is multiplied by
  /// `scale`.
  virtual void reduce_scatter(std::span<const PiecewiseReduceCall> calls,
                              double scale) = 0;

  /// From here on replays of graphs may come between calls. All ranks say so
  /// before the same call; each that captures one does so by itself, too.
  virtual void expect_replays() = 0;
  /// Around a replay on `stream`: it comes after all calls so far, and later
  /// ones after it.
  virtual void before_replay(const c10::Stream& stream) = 0;
  virtual void after_replay(const c10::Stream& stream) = 0;

  /// What is watched from here on: the call that was issued last, unless it is
  /// watched already.
  virtual void watch(const CollectiveEntry& entry) = 0;
  /// A call whose peers have not come for `patience`, or nothing. For the
  /// watchdog's thread.
  [[nodiscard]] virtual std::optional<CollectiveEntry> overdue(
      std::chrono::milliseconds patience) = 0;

  /// Ends all waits on the device; what the calls give then is of no use.
  virtual void stop() noexcept = 0;
  /// This thread waits until the device is through with all calls and replays.
  virtual void drain() noexcept = 0;
};

}  // namespace tessera
