#include "tessera/comm/watchdog.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/position_table.h"
#include "tessera/comm/watchdog_keys.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kPollsToAnswer = 3;

// A process that is there may be this late on a busy machine.
constexpr std::chrono::seconds kLeastToAnswer{3};

// For a store to answer, once the job has failed.
constexpr std::chrono::seconds kStorePatience{3};

}  // namespace

Watchdog::Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   const CollectiveLog& log, WatchdogCalls calls,
                   WatchdogOptions options, milliseconds patience)
    : rank_(rank),
      size_(size),
      log_(log),
      calls_(std::move(calls)),
      options_(options),
      store_(store, kStorePatience),
      watch_store_(store->clone(), patience),
      thread_([this] { run(); }) {}

void Watchdog::rest() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  watch_store_.hurry(kStorePatience);
  if (thread_.joinable()) thread_.join();
}

Watchdog::~Watchdog() {
  rest();
  // The process of rank 0 may hold the store: the others must still find there
  // what happened.
  const bool lingers = failed_here_ && !store_lost_ && !lingered_ &&
                       rank_ == 0 &&
                       options_.on_timeout == OnTimeout::end_process;
  if (lingers) std::this_thread::sleep_for(2 * options_.poll);
}

void Watchdog::announce(const std::string& cause) noexcept {
  if (announced_.exchange(true)) return;
  try {
    failed_here_ = true;
    // What the others say then follows from the first.
    if (!store_.check(kCause)) {
      store_.set(kCause, str("rank ", rank_, ": ", cause));
    }
    store_.set(kAlarm, "1");
  } catch (const std::exception&) {
    // Without a store nobody can be told; the connections close all the same.
  }
}

std::optional<std::string> Watchdog::peer_failure() noexcept {
  try {
    if (const auto lost = why_store_is_lost()) return lost;
    if (failed_here_ || !store_.check(kCause)) return std::nullopt;
    return store_.get(kCause);
  } catch (const std::exception&) {
    return why_store_is_lost();
  }
}

std::optional<std::string> Watchdog::why_store_is_lost() const {
  if (!store_.answers() || !watch_store_.answers()) {
    return "the store does not answer: the process that holds it (rank 0, "
           "unless a launcher does) is stopped, or cannot be reached";
  }
  if (!store_lost_) return std::nullopt;
  return "the store is gone: the process that held it ended";
}

std::string Watchdog::table(const std::string& cause) noexcept {
  try {
    failed_here_ = true;
    publish_place();
    std::string table = agreed_table(cause);
    store_.add(kReaders, 1);
    wait_for_readers();
    return table;
  } catch (const std::exception&) {
    return str("No table: the store does not answer. This rank: ",
               log_.describe(), ".");
  }
}

std::string Watchdog::agreed_table(const std::string& cause) {
  if (store_.add(kTableMaker, 1) != 1) {
    const auto patience = 3 * patience_for_answers();
    return appears(kTable, patience) ? store_.get(kTable) : make_table();
  }
  store_.set(kAlarm, "1");
  std::string table = make_table();
  if (!cause.empty()) announce(cause);
  store_.set(kTable, table);
  log_error("a collective failed; the ranks stand here:\n", table);
  return table;
}

// The process of rank 0 may hold the store, and may end as soon as it has its
// table.
void Watchdog::wait_for_readers() {
  if (rank_ != 0 || options_.on_timeout != OnTimeout::end_process) return;
  lingered_ = true;
  const auto deadline = Clock::now() + 2 * options_.poll;
  while (store_.add(kReaders, 0) < size_ && Clock::now() < deadline) {
    std::this_thread::sleep_for(options_.poll / 10);
  }
}

std::string Watchdog::make_table() {
  std::vector<RankPosition> positions;
  const auto deadline = Clock::now() + patience_for_answers();
  for (int rank = 0; rank < size_; ++rank) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (appears(place_key(rank), left)) {
      positions.push_back(from_record(store_.get(place_key(rank))));
    } else {
      positions.emplace_back().rank = rank;
    }
  }
  return position_table(positions);
}

milliseconds Watchdog::patience_for_answers() const {
  return std::max<milliseconds>(kPollsToAnswer * options_.poll, kLeastToAnswer);
}

bool Watchdog::appears(const std::string& key, milliseconds within) {
  const auto deadline = Clock::now() + within;
  while (!store_.check(key)) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(options_.poll / 10);
  }
  return true;
}

void Watchdog::run() {
  const ThreadLogRank log_rank(rank_);
  std::unique_lock lock(mutex_);
  while (!stop_changed_.wait_for(lock, options_.poll, [&] { return stop_; })) {
    lock.unlock();
    try {
      poll();
    } catch (const std::exception&) {
      store_lost_ = true;
      end_waits();
      if (options_.on_timeout == OnTimeout::end_process) end_after_grace();
      return;
    }
    lock.lock();
  }
}

void Watchdog::poll() {
  calls_.look();
  look_for_contradiction();
  if (!watch_store_.check(kAlarm)) return;
  publish_place();
  const bool job_failed =
      watch_store_.check(kCause) || watch_store_.check(kTable);
  if (!job_failed || std::exchange(told_, true)) return;
  if (!failed_here_) end_waits();
  if (options_.on_timeout == OnTimeout::end_process) end_after_grace();
}

// A backend that hangs while it is aborted (NCCL may) must not keep the
// process.
void Watchdog::end_waits() {
  if (options_.on_timeout != OnTimeout::end_process) return calls_.end_waits();
  std::promise<void> ended;
  std::thread guard([this, through = ended.get_future()] {
    const ThreadLogRank log_rank(rank_);
    if (through.wait_for(kGrace) == std::future_status::timeout) end_process();
  });
  calls_.end_waits();
  ended.set_value();
  guard.join();
}

RankPosition Watchdog::position() const {
  RankPosition position;
  position.rank = rank_;
  position.answered = true;
  position.last = log_.position();
  const auto age = Clock::now() - position.last.since();
  position.age_ms = std::chrono::duration_cast<milliseconds>(age).count();
  return position;
}

void Watchdog::publish_place() {
  if (place_published_.exchange(true)) return;
  watch_store_.set(place_key(rank_), to_record(position()));
}

void Watchdog::end_after_grace() {
  std::unique_lock lock(mutex_);
  if (stop_changed_.wait_for(lock, grace(), [&] { return stop_; })) return;
  end_process();
}

// Rank 0 first waits for those that read the table from it.
milliseconds Watchdog::grace() const {
  return rank_ == 0 ? kGrace + 2 * options_.poll : milliseconds(kGrace);
}

void Watchdog::end_process() const {
  log_error("the job has failed, and this process did not end by itself ",
            "within ", grace().count() / 1000, " s; ending it with code ",
            kExitCode, ".");
  std::_Exit(kExitCode);
}

}  // namespace tessera
