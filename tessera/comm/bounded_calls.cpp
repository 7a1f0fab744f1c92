#include "tessera/comm/bounded_calls.h"

#include <algorithm>
#include <condition_variable>

namespace tessera {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

}  // namespace

// Outlives the object where a call does.
struct BoundedCalls::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> call;  // taken by the thread
  bool running = false;
  bool stuck = false;
  bool stop = false;
  Clock::time_point deadline;
  std::optional<milliseconds> limit;

  void serve() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stop || call; });
      if (!call) return;
      {
        const auto taken = std::exchange(call, nullptr);
        lock.unlock();
        taken();
      }
      lock.lock();
      running = false;
      changed.notify_all();
    }
  }
};

BoundedCalls::BoundedCalls()
    : shared_(std::make_shared<Shared>()),
      thread_([shared = shared_] { shared->serve(); }) {}

BoundedCalls::~BoundedCalls() {
  bool stuck = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    stuck = shared_->running;
  }
  shared_->changed.notify_all();
  stuck ? thread_.detach() : thread_.join();
}

bool BoundedCalls::returns(std::function<void()> call, milliseconds within) {
  const std::lock_guard one_by_one(callers_);
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  if (shared.stuck) return false;
  shared.deadline =
      Clock::now() + std::min(within, shared.limit.value_or(within));
  shared.call = std::move(call);
  shared.running = true;
  shared.changed.notify_all();
  while (shared.running && Clock::now() < shared.deadline) {
    const auto deadline = shared.deadline;  // may be brought forward
    shared.changed.wait_until(lock, deadline);
  }
  shared.stuck = shared.running;
  return !shared.stuck;
}

void BoundedCalls::hurry(milliseconds within) {
  const std::lock_guard lock(shared_->mutex);
  shared_->limit = within;
  shared_->deadline = std::min(shared_->deadline, Clock::now() + within);
  shared_->changed.notify_all();
}

bool BoundedCalls::stuck() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->stuck;
}

}  // namespace tessera
