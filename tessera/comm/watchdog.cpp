#include "tessera/comm/watchdog.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdlib>
#include <utility>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/position_table.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kAlarm[] = "failure/alarm";
constexpr char kCause[] = "failure/cause";
constexpr char kTable[] = "failure/table";
constexpr char kTableMaker[] = "failure/table_maker";
constexpr int kPollsToAnswer = 3;

std::string place_key(int rank) { return str("failure/place/", rank); }

}  // namespace

Watchdog::Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                   const CollectiveLog& log, std::function<void()> on_failure,
                   WatchdogOptions options)
    : store_(std::move(store)),
      watch_store_(store_->clone()),
      rank_(rank),
      size_(size),
      log_(log),
      on_failure_(std::move(on_failure)),
      options_(options),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  thread_.join();
}

void Watchdog::announce(const std::string& cause) noexcept {
  try {
    failed_here_ = true;
    store_->set(kCause, str("rank ", rank_, ": ", cause));
    store_->set(kAlarm, "1");
  } catch (const std::exception&) {
    // Without a store nobody can be told; the connections close all the same.
  }
}

std::optional<std::string> Watchdog::peer_failure() noexcept {
  try {
    if (store_lost_) return "the store is gone: the process that held it ended";
    if (failed_here_ || !store_->check({kCause})) return std::nullopt;
    return store_->get_to_str(kCause);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string Watchdog::table() noexcept {
  try {
    failed_here_ = true;
    publish_place();
    if (store_->add(kTableMaker, 1) != 1) {
      const auto patience = 3 * kPollsToAnswer * options_.poll;
      if (appears(kTable, patience)) return store_->get_to_str(kTable);
      return make_table();
    }
    store_->set(kAlarm, "1");
    const std::string table = make_table();
    store_->set(kTable, table);
    log_error("a collective failed; the ranks stand here:\n", table);
    return table;
  } catch (const std::exception&) {
    return str("No table: the store does not answer. This rank: ",
               log_.describe(), ".");
  }
}

std::string Watchdog::make_table() {
  std::vector<RankPosition> positions;
  const auto deadline = Clock::now() + kPollsToAnswer * options_.poll;
  for (int rank = 0; rank < size_; ++rank) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    if (appears(place_key(rank), left)) {
      positions.push_back(from_record(store_->get_to_str(place_key(rank))));
    } else {
      positions.emplace_back().rank = rank;
    }
  }
  return position_table(positions);
}

bool Watchdog::appears(const std::string& key, milliseconds within) {
  const auto deadline = Clock::now() + within;
  while (!store_->check({key})) {
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
      on_failure_();
      return;
    }
    lock.lock();
  }
}

void Watchdog::poll() {
  if (!watch_store_->check({kAlarm})) return;
  publish_place();
  const bool job_failed =
      watch_store_->check({kCause}) || watch_store_->check({kTable});
  if (!job_failed || std::exchange(told_, true)) return;
  if (!failed_here_) on_failure_();
  if (options_.on_timeout == OnTimeout::end_process) end_after_grace();
}

void Watchdog::publish_place() {
  if (place_published_.exchange(true)) return;
  const CollectiveEntry last = log_.last();
  const RankPosition position = {
      .rank = rank_,
      .answered = true,
      .last = last,
      .age_ms =
          std::chrono::duration_cast<milliseconds>(Clock::now() - last.started)
              .count()};
  watch_store_->set(place_key(rank_), to_record(position));
}

void Watchdog::end_after_grace() {
  std::unique_lock lock(mutex_);
  if (stop_changed_.wait_for(lock, kGrace, [&] { return stop_; })) return;
  log_error("another rank failed, and this process did not end by itself ",
            "within ", kGrace.count(), " s; ending it with code ", kExitCode,
            ".");
  std::_Exit(kExitCode);
}

}  // namespace tessera
