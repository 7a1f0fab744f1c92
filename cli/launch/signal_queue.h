// The signals of the launcher, as a file that poll understands.
//
// While the object lives they are blocked and come out of next(), in place of
// handlers that could interrupt anything. Signals that were ignored at the
// start (nohup, a shell's background job) stay ignored, also in the ranks.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/launch/file_descriptor.h"

namespace tessera::launch {

class SignalQueue {
 public:
  /// `ending` are those that end the job: SIGTERM and the like. SIGUSR1,
  /// SIGUSR2, SIGTSTP and SIGCHLD are always taken.
  explicit SignalQueue(const std::vector<int>& ending);
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  [[nodiscard]] int fd() const { return fd_.get(); }
  /// The next signal that has come, if any. Never waits.
  [[nodiscard]] std::optional<int> next();
  /// The mask of before, which the ranks get back.
  [[nodiscard]] const sigset_t& mask_of_ranks() const { return old_mask_; }

 private:
  sigset_t old_mask_{};
  FileDescriptor fd_;
};

/// Reads "SIGTERM,SIGINT". Errors: InvalidArgument that names `option`.
[[nodiscard]] std::vector<int> parse_signals(const std::string& option,
                                             const std::string& text);

}  // namespace tessera::launch
