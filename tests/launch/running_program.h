// The program `tessera`, run as a process by a test. Nothing waits for ever:
// all waiting ends at a deadline and is then a failure of the test.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tessera::launch {

/// Polls `condition` until it holds. False at the deadline (5 min).
[[nodiscard]] bool eventually(const std::function<bool()>& condition);

/// True for a process that exists and is not a zombie.
[[nodiscard]] bool alive(pid_t process);
/// The letter of its state in /proc ('T' for stopped); '-' when it is gone.
[[nodiscard]] char state_of(pid_t process);
/// All that `process` has started, and what those have started.
[[nodiscard]] std::vector<pid_t> descendants(pid_t process);

struct ProgramOptions {
  std::string input = "";                  // what its stdin is read from
  std::function<void()> in_child = [] {};  // runs between fork and exec
};

class RunningProgram {
 public:
  /// Starts argv[0] with stdout and stderr in files of a fresh folder.
  explicit RunningProgram(const std::vector<std::string>& argv,
                          const ProgramOptions& options = {});
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;
  ~RunningProgram();

  [[nodiscard]] pid_t process() const { return process_; }
  void send(int signal) const;
  /// Its exit code, 128 + signal if one killed it, -1 at the deadline.
  int wait();
  [[nodiscard]] std::string output() const;
  [[nodiscard]] std::string error() const;
  /// Waits until stdout holds `count` lines, and returns stdout.
  [[nodiscard]] std::string wait_for_lines(int count) const;

 private:
  std::filesystem::path folder_;
  pid_t process_ = -1;
  std::optional<int> exit_code_;
};

/// tessera run -n `num_ranks` `options` -- sh -c `script`
[[nodiscard]] std::vector<std::string> run_script(
    int num_ranks, const std::string& script,
    const std::vector<std::string>& options = {});

/// The numbers in `text`, one a line.
[[nodiscard]] std::vector<pid_t> numbers(const std::string& text);

}  // namespace tessera::launch
