// A call of a group that is under way.
//
//   Work work = all_reduce(tensor, group);  // started
//   ...                                     // compute something else
//   work.wait();                            // `tensor` holds the sum
//
// A Work that is dropped is waited for, so that `all_reduce(tensor, group);`
// alone does not return before its end.
#pragma once

#include <chrono>
#include <exception>
#include <memory>

namespace tessera::distributed {

/// The tensors of the call are kept alive, and must not be written until the
/// end. One thread at a time.
class Work {
 public:
  class Impl;

  Work();
  explicit Work(std::unique_ptr<Impl> impl);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();  // waits, and swallows errors

  /// On CPU returns when the result is there. On CUDA the current stream waits,
  /// not the host. May be called again.
  /// Errors: CommError with the table of all ranks when a peer failed, or did
  ///         not come within the time-out of the group; the job has failed
  ///         then.
  void wait();

  /// The same with another time-out; on CUDA the host waits too.
  void wait(std::chrono::milliseconds timeout);

  /// True at the end, good or bad; does not wait. On Gloo messages (isend,
  /// irecv) count as ended only when they were waited for.
  [[nodiscard]] bool is_completed() const;

  /// True when it is completed without an error.
  [[nodiscard]] bool is_success() const;

  /// What `wait` would raise, as the backend says it; null without an error.
  [[nodiscard]] std::exception_ptr exception() const;

  /// Group rank of the sender; after the wait for an irecv. Errors:
  /// InvalidState before, and for other calls.
  [[nodiscard]] int source_rank() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::distributed
