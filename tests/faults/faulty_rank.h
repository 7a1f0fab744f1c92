// One rank of a small training job that may do something wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::test {

/// The time-out of all collectives of these jobs.
inline constexpr std::chrono::seconds kTimeout{3};

/// What `rank` does in its third step, or from the start.
///
///   none          nothing
///   kill, stop    gets SIGKILL or SIGSTOP in forward
///   slow, hang    computes for a second in forward, or for ever
///   forward, backward, hook, optimizer   throws there
///   memory        torch::empty fails, at a limit of the address space
///   bad_alloc     operator new fails, at the same limit
///   width, name, depth   has another model
///   order         uses two units in the other order
///   fewer, more   has one batch less, or one more
///   branch        leaves out a unit, so has no gradient for it
struct Fault {
  std::string kind;
  int rank = 1;
};

/// What the ranks of a job share with the test that started them.
struct JobBoard {
  std::atomic<int> ready = 0;           // ranks that are about to meet
  std::atomic<int64_t> failing_ns = 0;  // of the steady clock; 0: not yet

  void note_failing() {
    failing_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  }
};

/// Trains for five steps. Returns the exit code.
int run_rank(int rank, int size, int port, const Fault& fault, JobBoard& board);

}  // namespace tessera::test
