// Checks whose answer the host would have to wait for, and need not yet.
//
// On a device the ranks compare what they did at the end of a backward by a
// collective. Its result is looked at when it is there, when kMostOpen others
// have been issued after it, and before this rank meets the others through the
// store, as each save of a checkpoint and the end of the world do.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace tessera {

struct DeferredCheck {
  std::function<bool()> is_ready;  // waits for nothing
  std::function<void()> run;       // waits; throws when the check fails
};

class DeferredChecks {
 public:
  static constexpr size_t kMostOpen = 8;

  void add(DeferredCheck check) {
    const std::lock_guard lock(mutex_);
    checks_.push_back(std::move(check));
  }

  /// All, in the order in which they were added; an error leaves those after it
  /// for the next time.
  void run_all() {
    run_while([] { return true; });
  }

  /// Those in front that are ready or too many.
  void run_due() {
    run_while([this] {
      return checks_.size() > kMostOpen || checks_.front().is_ready();
    });
  }

 private:
  template <class Wanted>
  void run_while(Wanted&& wanted) {
    for (;;) {
      DeferredCheck check;
      {
        const std::lock_guard lock(mutex_);
        if (checks_.empty() || !wanted()) return;
        check = std::move(checks_.front());
        checks_.erase(checks_.begin());
      }
      check.run();  // it may meet the other ranks, and so come back to here
    }
  }

  std::mutex mutex_;
  std::vector<DeferredCheck> checks_;
};

}  // namespace tessera
