// One rank: the process that was started, and the process group that it leads.
//
//   running --(reaped)--> ended, group alive --(last of it gone)--> gone
//
// A rank is gone only when nothing that it started is left in its group.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

#include "cli/launch/exit_status.h"

namespace tessera::launch {

using Clock = std::chrono::steady_clock;

class RankProcess {
 public:
  explicit RankProcess(pid_t process) : process_(process) {}

  [[nodiscard]] pid_t process() const { return process_; }
  [[nodiscard]] bool running() const { return !status_; }
  [[nodiscard]] bool gone() const { return gone_; }
  [[nodiscard]] bool killed() const { return killed_; }
  /// How the rank itself ended, once it has.
  [[nodiscard]] const std::optional<ExitStatus>& status() const {
    return status_;
  }
  /// When the group is to be killed; unset while nobody asked it to end.
  [[nodiscard]] const std::optional<Clock::time_point>& deadline() const {
    return deadline_;
  }

  /// Sends to every process of the group. Nothing happens when it is gone.
  void send(int signal) const;
  /// Sends SIGKILL, and gives the kernel until `deadline` to carry it out.
  void kill(Clock::time_point deadline);
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }
  void set_status(ExitStatus status) { status_ = status; }
  /// Becomes gone when the rank has ended and its group is empty. True when
  /// that has just happened.
  bool update_gone();
  /// Treats the group as gone although it lives.
  void give_up() { gone_ = true; }

 private:
  pid_t process_;
  std::optional<ExitStatus> status_;
  std::optional<Clock::time_point> deadline_;
  bool killed_ = false;
  bool gone_ = false;
};

}  // namespace tessera::launch
