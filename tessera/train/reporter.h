// What a run tells people while it goes on: the progress line, metrics.jsonl,
// TensorBoard events, and at the end a curve. Lives on rank 0 alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tessera/train/train_config.h"

namespace tessera::train {

/// One step, as numbers.
struct StepReport {
  int64_t step = 0;  // counted from 1
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;       // of this step
  double seconds = 0;       // of this step
  int64_t num_skipped = 0;  // steps so far whose loss was not finite
  int64_t peak_bytes = 0;   // of memory
};

class Reporter {
 public:
  /// Makes the files in config.output.folder, which is there, anew; for a run
  /// that goes on after a step, drops what they say of later ones.
  /// Errors, here and below: Failure (cannot_write) with the file and the
  /// system's reason.
  Reporter(const TrainConfig& config, int world_size,
           std::optional<int64_t> goes_on_after = {});
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  /// A line for people.
  void say(const std::string& line);
  void step(const StepReport& report);
  void held_out(int64_t step, double loss);
  /// The curve, and the last lines.
  void finish();

 private:
  void print_progress(const StepReport& report);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::train
