// SIGTERM, SIGUSR1 (as batch systems warn of a time limit), SIGHUP (the
// terminal was closed) and SIGINT as a wish that the loop looks at between
// steps.
//
//   StopSignals signals;            // first of all, before any thread starts
//   World world = init_distributed();   // a signal ends the process as usual
//   signals.defer();                // from now on it sets requested()
//   while (!signals.requested()) step();
//
// A second SIGINT ends the process at once, and so does a second SIGTERM that
// comes a second later: one wish may come twice, from the batch system and
// through the launcher. Signals that were ignored when the
// process started (nohup) stay ignored. A closed pipe (SIGPIPE) is an error of
// the write, not a signal, while the object lives.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tessera::train {

class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  void defer() { deferred_ = true; }
  /// The signal that came first, or 0.
  [[nodiscard]] int requested() const { return requested_; }

 private:
  void watch();
  void take(int signal);

  sigset_t previous_{};
  sigset_t watched_{};
  int signals_ = -1;  // signalfd
  int end_ = -1;      // eventfd
  std::atomic<bool> deferred_ = false;
  std::atomic<int> requested_ = 0;
  std::chrono::steady_clock::time_point requested_at_;  // of thread_ alone
  std::thread thread_;
};

}  // namespace tessera::train
