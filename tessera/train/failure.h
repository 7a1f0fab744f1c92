// Why a run ended, as the exit code of the program and one sentence.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera::train {

/// The codes of `tessera train`, `generate` and `eval`. docs/train.md explains
/// them; 70 is a rank that the watchdog ended.
enum class ExitCode {
  done = 0,  // also after SIGTERM
  failed = 1,
  wrong_config = 2,
  missing_data = 10,
  damaged_data = 11,
  short_data = 12,
  small_vocabulary = 13,
  uneven_batch = 14,
  cannot_write = 20,
  nonfinite_loss = 21,
  missing_weights = 22,
  cannot_resume = 23,
  out_of_memory = 24,
  peer_failed = 71,
};

/// An error that knows its exit code.
class Failure : public Error {
 public:
  Failure(ExitCode code, const std::string& message)
      : Error(message), code_(code) {}
  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

using tessera::require;  // which the one below would hide

/// Raises Failure with the text that `message` returns, unless `ok`.
template <class Message>
void require(bool ok, ExitCode code, Message&& message) {
  if (!ok) [[unlikely]] {
    throw Failure(code, std::forward<Message>(message)());
  }
}

}  // namespace tessera::train
