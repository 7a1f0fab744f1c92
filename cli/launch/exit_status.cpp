#include "cli/launch/exit_status.h"

#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

// The two ways to die that a reader of logs most often asks about.
std::string hint(int signal) {
  if (signal == SIGKILL) return ", often the out-of-memory killer";
  if (signal == SIGBUS) return ", often a full /dev/shm";
  return "";
}

}  // namespace

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  if (abbreviation == nullptr) return str("signal ", signal);
  return str("SIG", abbreviation);
}

int ExitStatus::signal() const {
  return WIFSIGNALED(wait_status_) ? WTERMSIG(wait_status_) : 0;
}

int ExitStatus::code() const {
  return signal() != 0 ? 128 + signal() : WEXITSTATUS(wait_status_);
}

std::string ExitStatus::describe() const {
  if (signal() == 0) return str("exited with code ", code());
  return str(
      "was killed by ", signal_name(signal()), " (", ::strsignal(signal()),
      WCOREDUMP(wait_status_) ? ", core dumped" : "", hint(signal()), ")");
}

}  // namespace tessera::launch
