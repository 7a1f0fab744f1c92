// Saves while training goes on.
//
//   checkpoint::AsyncSaver saver({.world = world});
//   for (...) {
//     ...
//     if (step % 100 == 0) saver.save(str("ckpt/step-", step), state);
//   }
//   saver.wait();
//
// `save` copies this rank's part to host memory, agrees with the other ranks on
// who writes what, and returns; threads write the files and complete the
// checkpoint, without collectives. One save is under way at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::checkpoint {

class AsyncSaver {
 public:
  explicit AsyncSaver(SaveOptions options = {});
  /// Waits for this rank's part of the save under way, and logs its error.
  /// While an exception is in flight it gives the save up instead.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Collective. First waits for the save before it, as `wait` does. The state
  /// may change as soon as this returns. Host memory: this rank's part, kept
  /// for the next save. Errors: those of `wait`, of the save before; and those
  /// of
  ///         checkpoint::save that are known before anything is written.
  void save(const std::string& path, const State& state);

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
  std::map<std::string, at::Tensor> buffers_;
  std::unique_ptr<Job> job_;
};

}  // namespace tessera::checkpoint
