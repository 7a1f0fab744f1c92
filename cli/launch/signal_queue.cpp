#include "cli/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

// A blocked signal is queued even when it is ignored, so ignored ones stay out.
sigset_t handled_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGCHLD);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP}) {
    if (!is_ignored(signal)) ::sigaddset(&signals, signal);
  }
  return signals;
}

}  // namespace

SignalQueue::SignalQueue() {
  ::signal(SIGCHLD, SIG_DFL);  // ignored, it would take the exit codes away
  const sigset_t handled = handled_signals();
  sigset_t blocked = handled;
  ::sigaddset(&blocked, SIGPIPE);  // a write answers EPIPE instead
  ::sigprocmask(SIG_BLOCK, &blocked, &old_mask_);
  fd_ = FileDescriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.open()) {
    throw LaunchError(kExitLauncher,
                      str("cannot watch signals: ", std::strerror(errno)));
  }
}

SignalQueue::~SignalQueue() { ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr); }

std::optional<int> SignalQueue::next() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) {
    return std::nullopt;
  }
  return static_cast<int>(info.ssi_signo);
}

}  // namespace tessera::launch
