// A unit's optimizer step inside of backward.
//
//   compute stream   | backward of u2 | backward of u1 | backward of u0 |
//   reduce stream                     | reduce u2 | step u2 | reduce u1 | ...
//
// A unit that nothing needed any more once its reduction had begun, in every
// backward so far, steps as soon as it is reduced; others, and all in the first
// backward, at the end of backward. Local: ranks need not agree on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/device/stream.h"

namespace tessera {

class ParameterGroup;

using ShardStep = std::function<void(const std::vector<at::Tensor>& shards)>;

class BackwardStep {
 public:
  /// Null: no step in backward.
  void set(std::shared_ptr<const ShardStep> step) { step_ = std::move(step); }
  [[nodiscard]] bool is_set() const { return step_ != nullptr; }

  /// The unit, whose reduction has begun, is read or gets a gradient.
  /// Errors: InvalidState when it has stepped already: this backward is not
  ///         like those before it.
  void note_late_use(const std::string& unit);
  [[nodiscard]] bool may_run_early() const {
    return is_set() && habit_ == Habit::quiet && !ran_;
  }

  /// Steps the shards that have a gradient, on the current stream, and drops
  /// their gradients.
  void run(const std::vector<std::unique_ptr<ParameterGroup>>& groups);
  /// What is issued to `stream` from here on comes after the steps.
  void join(const c10::Stream& stream);

  /// A backward pass is through, in which the unit was reduced or not.
  void end_pass(bool reduced);
  void abandon_pass() noexcept;

 private:
  enum class Habit { unknown, quiet, late };

  std::shared_ptr<const ShardStep> step_;
  Habit habit_ = Habit::unknown;
  bool ran_ = false;  // in this pass
  StreamEvent done_;
  // Flat gradients: another stream than the one that they came from may still
  // read them.
  std::vector<at::Tensor> in_use_;
};

}  // namespace tessera
