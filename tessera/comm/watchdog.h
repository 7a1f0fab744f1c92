// Watches over one rank's job: learns that another rank failed, and says where
// all ranks stand when a collective fails.
//
// A small thread looks at the store now and then. So a rank that computes, or
// hangs in user code, still answers for its place. Keys, under "failure/":
//
//   alarm     set first of all: the one key looked at in good times
//   cause     "rank 2: <what it threw>", by a rank that failed on its own
//   table     the finished table, by the rank that was first to want one
//   place/R   where rank R stands, once there is an alarm
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"

namespace c10d {
class Store;
}

namespace tessera {

class CollectiveLog;

/// A collective failed because another rank had failed before it: the echo of
/// an error, not the error.
class PeerFailure : public CommError {
 public:
  using CommError::CommError;
};

struct WatchdogOptions {
  OnTimeout on_timeout = OnTimeout::throw_error;
  std::chrono::milliseconds poll = std::chrono::seconds(1);
};

class Watchdog {
 public:
  /// The exit code of a process that the watchdog ends.
  static constexpr int kExitCode = 70;
  /// What is left to a process to end by itself after a failure.
  static constexpr std::chrono::seconds kGrace{5};

  /// `on_failure` runs once, on the watchdog's thread, when another rank has
  /// failed or the store is gone. `log` and what `on_failure` uses must outlive
  /// the watchdog.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
           const CollectiveLog& log, std::function<void()> on_failure,
           WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Tells all ranks that this one failed by itself.
  void announce(const std::string& cause) noexcept;

  /// What another rank announced, or that the store is gone.
  [[nodiscard]] std::optional<std::string> peer_failure() noexcept;

  /// Where all ranks stand. The first rank to ask collects it and writes it to
  /// standard error; the others get the same text. Takes a few polls.
  [[nodiscard]] std::string table() noexcept;

 private:
  void run();
  void poll();
  void publish_place();
  void end_after_grace();
  [[nodiscard]] std::string make_table();
  [[nodiscard]] bool appears(const std::string& key,
                             std::chrono::milliseconds within);

  const c10::intrusive_ptr<c10d::Store> store_;        // for callers
  const c10::intrusive_ptr<c10d::Store> watch_store_;  // for the thread
  const int rank_;
  const int size_;
  const CollectiveLog& log_;
  const std::function<void()> on_failure_;
  const WatchdogOptions options_;

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::atomic<bool> place_published_ = false;
  std::atomic<bool> failed_here_ = false;
  std::atomic<bool> store_lost_ = false;
  bool told_ = false;  // on_failure_ has run
  std::thread thread_;
};

}  // namespace tessera
