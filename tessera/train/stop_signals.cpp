#include "tessera/train/stop_signals.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

bool ignored(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

/// Ends the process by `signal`, as if nobody had caught it.
void die_of(int signal) {
  ::signal(signal, SIG_DFL);
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(signal);
}

}  // namespace

StopSignals::StopSignals() {
  ::sigemptyset(&watched_);
  for (const int signal : {SIGTERM, SIGUSR1, SIGHUP, SIGINT}) {
    if (!ignored(signal)) ::sigaddset(&watched_, signal);
  }
  sigset_t blocked = watched_;
  ::sigaddset(&blocked, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &previous_);
  signals_ = ::signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  tessera::require<InvalidState>(signals_ >= 0 && end_ >= 0, [] {
    return str("StopSignals: no file descriptor is left; raise ulimit -n.");
  });
  thread_ = std::thread([this] { watch(); });
}

StopSignals::~StopSignals() {
  const uint64_t one = 1;
  while (::write(end_, &one, sizeof one) != sizeof one) {
  }
  thread_.join();
  ::close(signals_);
  ::close(end_);
  ::pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void StopSignals::watch() {
  while (true) {
    pollfd ready[] = {{signals_, POLLIN, 0}, {end_, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0) continue;
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      take(static_cast<int>(info.ssi_signo));
    }
    if (ready[1].revents != 0) return;
  }
}

void StopSignals::take(int signal) {
  constexpr std::chrono::seconds kOneWish(1);
  const auto now = std::chrono::steady_clock::now();
  const int first = requested_;
  const bool again =
      (signal == SIGINT && first == SIGINT) ||
      (signal == SIGTERM && first != 0 && now - requested_at_ >= kOneWish);
  if (!deferred_ || again) die_of(signal);
  if (first != 0) return;
  requested_at_ = now;
  requested_ = signal;
}

}  // namespace tessera::train
