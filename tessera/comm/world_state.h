// What the handles of one World share. Inside comm only.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/comm/backend_factory.h"
#include "tessera/comm/collective_check.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/deferred_checks.h"
#include "tessera/comm/group_names.h"
#include "tessera/comm/message_check.h"
#include "tessera/comm/peer_links.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/replayed_calls.h"
#include "tessera/comm/routes.h"
#include "tessera/comm/transfer.h"
#include "tessera/comm/watchdog.h"
#include "tessera/comm/world.h"
#include "tessera/comm/world_place.h"

namespace tessera {

struct World::State {
 public:
  /// `store` may be empty for a world of one. `make_devices` is called once, by
  /// the first Gloo backend.
  State(WorldPlace place, c10::intrusive_ptr<c10d::Store> store,
        std::function<GlooDevices()> make_devices, WatchdogOptions options);
  /// Says goodbye, unless an exception is in flight or the world has failed.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const WorldPlace place;
  CollectiveLog log;
  TransferRegistry transfers;
  ReplayedCalls replayed;
  DeferredChecks deferred;
  PeerLinks peers;
  std::atomic<int64_t> next_id = 0;
  GroupNames group_names;

  /// The part of the store that belongs to one group.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> store_of(
      const std::string& prefix) const;

  /// The ways to the ranks of a new group; none in a group of one. Backends
  /// live as long as this world: a peer may still read from them.
  [[nodiscard]] Routes connect(const std::string& name,
                               const std::vector<int>& ranks);

  /// The same for any backend, also of a group of one; the group is known.
  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const BackendPlace& place, const BackendMaker& make);

  /// Shuts down a backend before the end of this world.
  void disconnect(const c10::intrusive_ptr<c10d::Backend>& backend);

  /// Makes `ranks` peers under this name. Errors: InvalidArgument when it was
  /// done before.
  void add_group(const std::string& name, const std::vector<int>& ranks);

  /// The same, but nothing the second time.
  void add_peers(const std::string& name, const std::vector<int>& ranks);

  [[nodiscard]] GlooDevices gloo_devices();

  /// True when `rank` belongs to a communicator of this name.
  [[nodiscard]] bool has_peer(const std::string& communicator, int rank);

  /// The meeting point of all ranks.
  [[nodiscard]] Rendezvous& rendezvous() { return rendezvous_; }

  /// Runs what meets the other ranks through the store, entered in the log, and
  /// before it the deferred checks. Errors: theirs, and as `raise`.
  template <class Body>
  auto meet(std::string_view communicator, std::string_view kind,
            const CallLabel& label, Body&& body);

  /// Turns the failure of a collective into the error of this rank: with the
  /// table of all ranks, or with what made another rank fail before. Ends all
  /// other waits of this rank. Errors: CommError, always.
  [[noreturn]] void raise(uint64_t sequence, const std::string& cause);

  /// Errors: CommError when this world has failed before, InvalidState after
  /// `finish`.
  void check_alive(uint64_t sequence);

  /// Before a collective runs: the same, and with TESSERA_CHECK_COLLECTIVES the
  /// comparison with the other ranks. Errors: CommError when they differ.
  void begin(uint64_t sequence);

  /// The same before messages run, of which this rank is one end.
  void begin_messages(uint64_t sequence, const std::vector<MessageEnd>& ends);

  /// This rank failed by an error of its own: tells the others.
  void announce(const std::string& cause) noexcept;

  /// The same, and ends all waits.
  void fail(const std::string& cause) noexcept;

  /// See World::finish.
  void finish();

  /// Waits until every rank says goodbye, for the time-out at most: the rank
  /// that holds the store must not take it away from the others.
  void say_goodbye();

  [[nodiscard]] bool failed() const { return failed_; }
  /// See Watchdog::table. For a process that is about to die.
  [[nodiscard]] std::string table(const std::string& cause = "") noexcept;

 private:
  void abort() noexcept;
  void run_last_checks() noexcept;
  /// Asks a check and fails the world when it finds a difference. Errors:
  /// CommError then, and as `raise` when the store fails.
  template <class Ask>
  void require_alike(uint64_t sequence, Ask&& ask);
  /// On the watchdog's thread: what hangs on the device fails as a collective
  /// that the host waits for does.
  void look_at_device();
  void fail_on_device(const CollectiveEntry& entry, const char* where);
  /// Writes the flight record, the first time and if a folder is named for it.
  /// Returns a sentence that names the file, or "".
  std::string record_flight(const std::string& cause) noexcept;
  /// The ranks that make the calls of this communicator alike; none where that
  /// is unknown.
  [[nodiscard]] std::vector<int> peers_of(const std::string& communicator);
  /// Where the ranks of a group meet before they are connected.
  [[nodiscard]] Rendezvous start_of(const BackendPlace& at);
  void share_memory(Routes& routes, const BackendPlace& at);

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<GlooDevices()> make_devices_;
  std::atomic<bool> failed_ = false;
  bool said_goodbye_ = false;
  std::atomic<bool> finished_ = false;
  Rendezvous rendezvous_;
  std::mutex mutex_;
  GlooDevices gloo_devices_;
  std::multimap<std::string, std::vector<int>> groups_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
  std::shared_ptr<HostLink> link_;          // on CPU, unless switched off
  std::unique_ptr<Watchdog> watchdog_;      // goes first: it uses the others
  std::unique_ptr<CollectiveCheck> check_;  // when asked for
  std::unique_ptr<MessageCheck> messages_;  // with it
  std::mutex flight_mutex_;
  std::optional<std::string> flight_;  // what record_flight returned
};

/// What an exception of LibTorch or Gloo says, without stack trace and advice.
[[nodiscard]] std::string reason_of(const std::exception& error);

template <class Body>
auto World::State::meet(std::string_view communicator, std::string_view kind,
                        const CallLabel& label, Body&& body) {
  deferred.run_all();
  const uint64_t sequence = log.enter_unhashed(communicator, kind, label);
  begin(sequence);
  log.wait(sequence);
  try {
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      log.finish(sequence);
    } else {
      auto result = body();
      log.finish(sequence);
      return result;
    }
  } catch (const std::exception& error) {
    raise(sequence, reason_of(error));
  }
}

}  // namespace tessera
