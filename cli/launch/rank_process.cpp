#include "cli/launch/rank_process.h"

#include <csignal>

namespace tessera::launch {

// The number cannot have passed to a stranger: the kernel keeps it while the
// rank is unreaped or its group has a member.
void RankProcess::send(int signal) const {
  if (!gone_) ::kill(-process_, signal);
}

void RankProcess::kill(Clock::time_point deadline) {
  send(SIGKILL);
  killed_ = true;
  deadline_ = deadline;
}

bool RankProcess::update_gone() {
  if (gone_ || running()) return false;
  gone_ = ::kill(-process_, 0) != 0;
  return gone_;
}

}  // namespace tessera::launch
