// Watches over one rank's job: learns that another rank failed, and says where
// all ranks stand when a collective fails.
//
// A small thread looks at the store now and then. So a rank that computes, or
// hangs in user code, still answers for its place. Keys, under "failure/":
//
//   alarm     set first of all: the one key looked at in good times
//   cause     "rank 2: <what it threw>", by a rank that failed on its own
//   table     the finished table, by the rank that was first to want one
//   readers   how many ranks have read it
//   place/R   where rank R stands, once there is an alarm
//   stall/R   where rank R stands, while it has waited there for ten polls
//
// Two ranks that stall in unlike calls at one point of one communicator will
// never end: that is found from stall/R, long before the time-out.
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
#include "tessera/comm/bounded_store.h"
#include "tessera/comm/position_table.h"
#include "tessera/comm/world.h"

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

/// What the watchdog needs of its rank; called on the watchdog's thread.
struct WatchdogCalls {
  // At each poll.
  std::function<void()> look;
  // Once, when the job has failed elsewhere: end all waits.
  std::function<void()> end_waits;
  // Is this rank a peer in the communicator of this name?
  std::function<bool(const std::string& communicator, int rank)> has_peer;
};

class Watchdog {
 public:
  /// The exit code of a process that the watchdog ends.
  static constexpr int kExitCode = 70;
  /// What is left to a process to end by itself after a failure.
  static constexpr std::chrono::seconds kGrace{3};

  /// `log` and what `calls` use must outlive the watchdog. `patience` is how
  /// long the store may take to answer while nothing else is wrong.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
           const CollectiveLog& log, WatchdogCalls calls,
           WatchdogOptions options, std::chrono::milliseconds patience);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Looks at the store no more: the job is through, and the store may go.
  void rest();

  /// Tells all ranks that this one failed by itself. The first cause counts.
  void announce(const std::string& cause) noexcept;

  /// What another rank announced, or that the store is gone or stopped.
  [[nodiscard]] std::optional<std::string> peer_failure() noexcept;

  /// "rank 0 waits in all_gather ..., but rank 1 waits in ...", when found.
  [[nodiscard]] std::optional<std::string> contradiction() noexcept;

  /// Where all ranks stand. The first rank to ask collects it and writes it to
  /// standard error; the others get the same text. Takes a few polls. `cause`,
  /// unless it is empty, is announced before the others can read the table.
  [[nodiscard]] std::string table(const std::string& cause = "") noexcept;

 private:
  void run();
  void poll();
  void publish_place();
  void look_for_contradiction();
  void report_contradiction(const RankPosition& own, const RankPosition& other);
  void end_waits();
  void end_after_grace();
  [[noreturn]] void end_process() const;
  [[nodiscard]] std::optional<std::string> why_store_is_lost() const;
  [[nodiscard]] RankPosition position() const;
  [[nodiscard]] std::string agreed_table(const std::string& cause);
  [[nodiscard]] std::string make_table();
  void wait_for_readers();
  [[nodiscard]] std::chrono::milliseconds patience_for_answers() const;
  [[nodiscard]] std::chrono::milliseconds grace() const;
  [[nodiscard]] bool appears(const std::string& key,
                             std::chrono::milliseconds within);

  const int rank_;
  const int size_;
  const CollectiveLog& log_;
  const WatchdogCalls calls_;
  const WatchdogOptions options_;
  BoundedStore store_;        // for callers
  BoundedStore watch_store_;  // for the thread

  std::mutex mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::atomic<bool> place_published_ = false;
  std::atomic<bool> failed_here_ = false;
  std::atomic<bool> store_lost_ = false;
  std::atomic<bool> announced_ = false;
  std::atomic<bool> lingered_ = false;
  bool told_ = false;     // of the job's failure; on the thread only
  bool stalled_ = false;  // stall/R is set; on the thread only
  std::thread thread_;
};

}  // namespace tessera
