// Saves while training goes on.
//
//   checkpoint::AsyncSaver saver({.world = world});
//   for (...) {
//     ...
//     if (step % 100 == 0) saver.save(str("ckpt/step-", step), state);
//   }
//   saver.wait();
//
// `save` agrees with the other ranks on who writes what, begins to copy this
// rank's part to host memory, and returns; threads write the files and complete
// the checkpoint, without collectives. One save is under way at a time.
//
// On a GPU the copies have a stream of their own and go to pinned memory. The
// work that is issued after `save` waits for them on the GPU, or, with
// Staging::beside_steps, only what comes after `before_change`. What is in host
// memory is copied when `save` returns, or, beside steps, by the thread that
// writes, and `before_change` waits for it.
//
//   checkpoint::AsyncSaver saver({.world = world}, Staging::beside_steps);
//   for (...) {
//     loss(batch).backward();     // copies go on meanwhile
//     saver.before_change();
//     optimizer.step();
//     if (step % 100 == 0) saver.save(str("ckpt/step-", step), state);
//   }
//
// Where units step inside of backward (step_in_backward), `before_change` comes
// before `backward`; before a step that is replayed (GraphedStep), before it.
#pragma once

#include <memory>
#include <string>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/host_copy.h"

namespace tessera::checkpoint {

/// When a state may change after `save`.
enum class Staging {
  before_later_work,  // at once, by the host or by work of the current stream
  beside_steps,       // the same, after `before_change`
};

class AsyncSaver {
 public:
  explicit AsyncSaver(SaveOptions options = {},
                      Staging staging = Staging::before_later_work);
  /// Waits for this rank's part of the save under way, and logs its error.
  /// While an exception is in flight it gives the save up instead.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Collective. First waits for the save before it, as `wait` does. Host
  /// memory: this rank's part, kept for the next save; so the first takes
  /// longer. Errors: those of `wait`, of the save before; and those of
  /// checkpoint::save
  ///         that are known before anything is written.
  void save(const std::string& path, const State& state);

  /// Later work of the current stream waits until the state of the last `save`
  /// is copied. The host does not wait, but for what is in host memory. Not
  /// collective; nothing without a save.
  void before_change() { memory_.block_later_work(); }

  /// Collective. Returns when the last save is complete.
  /// Errors: the same on every rank, naming rank, path and reason.
  void wait();

  /// Not collective, without waiting: whether this rank knows that the save
  /// under way has failed. Some rank does soon; `wait` then says why, on all.
  [[nodiscard]] bool failed() const;

  /// Not collective, without waiting: whether this rank still writes its part
  /// or, on rank 0, completes the checkpoint. Ranks may end at different times.
  [[nodiscard]] bool saving() const;

 private:
  struct Job;

  SaveOptions options_;
  Staging staging_;
  HostCopy memory_;
  std::unique_ptr<Job> job_;
};

}  // namespace tessera::checkpoint
