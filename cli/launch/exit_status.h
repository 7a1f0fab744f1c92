// How a process ended, in words and as a shell would number it.
#pragma once

#include <string>

namespace tessera::launch {

/// What waitpid reported about a process that has ended.
class ExitStatus {
 public:
  explicit ExitStatus(int wait_status) : wait_status_(wait_status) {}

  [[nodiscard]] bool success() const { return wait_status_ == 0; }
  /// The signal that killed it; 0 when it exited by itself.
  [[nodiscard]] int signal() const;
  /// Its exit code, or 128 + the signal that killed it.
  [[nodiscard]] int code() const;
  /// "exited with code 3"; "was killed by SIGSEGV (Segmentation fault)".
  [[nodiscard]] std::string describe() const;

 private:
  int wait_status_;
};

/// "SIGTERM"; "signal 77" for one without a name.
[[nodiscard]] std::string signal_name(int signal);

}  // namespace tessera::launch
