// A job of processes that this process forks: a rank costs milliseconds, not
// the second that a program with LibTorch takes to start.
//
//   Job job(3, {.kind = "kill", .rank = 1});
//   const std::vector<Ended> ranks = job.end();
//
// Jobs run beside each other from their construction on.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/faults/faulty_rank.h"

namespace tessera::test {

/// How one rank ended.
struct Ended {
  int code = 0;        // exit code, or minus the signal
  double seconds = 0;  // since the fault
  std::string output;  // both streams
};

/// Of the environment, for all ranks.
using Variables = std::map<std::string, std::string>;

class Job {
 public:
  Job(int size, Fault fault, Variables variables = {});
  ~Job();  // kills what is left
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Waits for all ranks, but not for one that is stopped: it is killed at the
  /// end, as a launcher would. After a minute all are, with code kLate.
  std::vector<Ended> end();

  [[nodiscard]] const Fault& fault() const { return fault_; }
  static constexpr int kLate = -1000;

 private:
  void start_rank(int rank, int port);
  [[nodiscard]] bool look_after(int rank, Ended& ended);

  Fault fault_;
  Variables variables_;
  JobBoard* board_;
  std::filesystem::path folder_;
  std::vector<pid_t> ranks_;  // 0: has ended
};

}  // namespace tessera::test
