// Ranks as threads of one process, for tests.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tessera/base/environment.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/backend_factory.h"
#include "tessera/comm/world_state.h"

namespace tessera {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Body = void (*)(void*, const World&);

// How long a rank may wait for one that has returned already.
constexpr auto kLeaverPatience = 2s;
constexpr auto kShortestHang = 30s;

struct Rank {
  std::shared_ptr<World::State> state;
  std::exception_ptr failure;
  bool returned = false;
  Clock::time_point returned_at;
  std::string missed;  // who waited for this rank after it had returned
  bool ended = false;
};

/// All ranks, and the thread that started them as their supervisor.
class ThreadGroup {
 public:
  ThreadGroup(int size, milliseconds timeout) : timeout_(timeout) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back().state = make_state(rank, size, store);
    }
  }

  void run(Body call, void* body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { run_rank(rank, call, body); });
    }
    supervise();
    for (std::thread& thread : threads) thread.join();
  }

  void rethrow_failure() const;

 private:
  std::shared_ptr<World::State> make_state(
      int rank, int size, const c10::intrusive_ptr<c10d::Store>& store) {
    const WorldPlace place = {
        .rank = rank, .size = size, .local_rank = rank, .timeout = timeout_};
    return std::make_shared<World::State>(
        place, store, [] { return make_gloo_devices("", "127.0.0.1"); },
        WatchdogOptions{.on_timeout = OnTimeout::throw_error, .poll = 100ms});
  }

  void run_rank(size_t rank, Body call, void* body);
  void supervise();
  void fail_leavers();
  [[nodiscard]] uint64_t progress() const;
  [[noreturn]] void abort_process() const;

  milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
};

std::string what_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return reason_of(error);
  } catch (...) {
    return "threw something that is no std::exception";
  }
}

void ThreadGroup::run_rank(size_t rank, Body call, void* body) {
  const ThreadLogRank log_rank(static_cast<int>(rank));
  Rank& self = ranks_[rank];
  std::exception_ptr failure;
  try {
    call(body, World(self.state));
    {
      const std::lock_guard lock(mutex_);
      self.returned = true;
      self.returned_at = Clock::now();
    }
    self.state->say_goodbye();
  } catch (...) {
    failure = std::current_exception();
    self.state->fail(what_of(failure));
  }
  const std::lock_guard lock(mutex_);
  if (!self.missed.empty()) {
    failure = std::make_exception_ptr(CommError(self.missed));
  }
  self.failure = failure;
  self.ended = true;
  changed_.notify_all();
}

void ThreadGroup::supervise() {
  const auto patience = std::max<milliseconds>(3 * timeout_, kShortestHang);
  std::unique_lock lock(mutex_);
  auto last_progress = Clock::now();
  uint64_t seen = progress();
  while (!changed_.wait_for(lock, 100ms, [&] {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& rank) { return rank.ended; });
  })) {
    fail_leavers();
    if (std::exchange(seen, progress()) != progress()) {
      last_progress = Clock::now();
    }
    if (Clock::now() - last_progress > patience) abort_process();
  }
}

// A rank that has returned will not come to what another waits for.
void ThreadGroup::fail_leavers() {
  for (size_t leaver = 0; leaver < ranks_.size(); ++leaver) {
    Rank& gone = ranks_[leaver];
    const auto now = Clock::now();
    if (!gone.returned || gone.ended || gone.state->failed() ||
        now - gone.returned_at < kLeaverPatience) {
      continue;
    }
    for (const Rank& rank : ranks_) {
      const CollectiveEntry last = rank.state->log.position();
      const bool waits =
          last.waited && !last.finished &&
          now - last.since() > kLeaverPatience &&
          rank.state->has_peer(last.communicator, static_cast<int>(leaver));
      if (rank.returned || !waits) continue;
      gone.missed =
          str("returned, while rank ", rank.state->place.rank,
              " waits for it in ", last.kind, " #", last.sequence, " on '",
              last.communicator, "', unit '", last.unit, "'");
      gone.state->fail(gone.missed);
      break;
    }
  }
}

uint64_t ThreadGroup::progress() const {
  uint64_t sum = 0;
  for (const Rank& rank : ranks_) {
    const CollectiveEntry last = rank.state->log.last();
    sum += 3 * last.sequence + (last.waited ? 1 : 0) + (last.finished ? 1 : 0) +
           (rank.ended ? 1 : 0);
  }
  return sum;
}

void ThreadGroup::abort_process() const {
  for (const Rank& rank : ranks_) {
    log_error("run_ranks hangs; rank ", rank.state->place.rank,
              rank.returned ? " has returned: " : ": ",
              rank.state->log.describe());
  }
  std::abort();
}

// Throws `error` anew with its rank in front, when it is exactly an E.
template <class E>
void rethrow_if(const std::exception& error, const std::string& rank) {
  if (typeid(error) != typeid(E)) return;
  const std::string what = error.what();
  throw E(what.starts_with(rank) ? what : rank + what);
}

[[noreturn]] void rethrow_with_rank(const std::exception_ptr& failure,
                                    size_t rank) {
  const std::string prefix = str("rank ", rank, ": ");
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure& error) {
    throw CommError(error.what());
  } catch (const Error& error) {
    rethrow_if<InvalidArgument>(error, prefix);
    rethrow_if<InvalidState>(error, prefix);
    rethrow_if<CommError>(error, prefix);
    rethrow_if<CheckpointError>(error, prefix);
    rethrow_if<Unsupported>(error, prefix);
    throw;
  }
}

bool is_echo(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure&) {
    return true;
  } catch (...) {
    return false;
  }
}

void ThreadGroup::rethrow_failure() const {
  for (const bool want_echo : {false, true}) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::exception_ptr& failure = ranks_[rank].failure;
      if (failure && is_echo(failure) == want_echo) {
        rethrow_with_rank(failure, rank);
      }
    }
  }
}

}  // namespace

void internal::run_ranks(int world_size, Body call, void* body,
                         std::chrono::milliseconds timeout) {
  require<InvalidArgument>(world_size >= 1, [&] {
    return str("run_ranks: got ", world_size, " ranks; expected 1 or more.");
  });
  environment::disable_flight_recorder();
  ThreadGroup group(world_size, timeout);
  group.run(call, body);
  group.rethrow_failure();
}

}  // namespace tessera
