#include "cli/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "cli/launch/exit_status.h"
#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 &&
         action.sa_handler == SIG_IGN;
}

// A blocked signal is queued even when it is ignored, so ignored ones stay out.
sigset_t handled_signals(std::vector<int> wanted) {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGCHLD);
  wanted.insert(wanted.end(), {SIGUSR1, SIGUSR2, SIGTSTP});
  for (const int signal : wanted) {
    if (!is_ignored(signal)) ::sigaddset(&signals, signal);
  }
  return signals;
}

}  // namespace

SignalQueue::SignalQueue(const std::vector<int>& ending) {
  ::signal(SIGCHLD, SIG_DFL);  // ignored, it would take the exit codes away
  const sigset_t handled = handled_signals(ending);
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

std::vector<int> parse_signals(const std::string& option,
                               const std::string& text) {
  constexpr std::array kEnding = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::vector<int> signals;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto found = std::ranges::find(kEnding, name, signal_name);
    require(found != kEnding.end(), [&] {
      return str(option, " names '", name,
                 "'; give some of SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    });
    signals.push_back(*found);
  }
  return signals;
}

}  // namespace tessera::launch
