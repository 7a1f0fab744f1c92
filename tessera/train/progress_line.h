// What a run prints while it trains, one line now and then:
//
//   step  120/1000 | loss 3.4567 (-0.31z) | norm 0.8123 (+1.20z) |
//   lr 3.00e-04 | 52,310 tok/s | 41.2% MFU | 12.3 GiB | ETA 0:14:05
//
// (one line, in truth). z: how many deviations a value lies above the mean of
// the steps before it. A loss at +5z is a step to look at.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace tessera::train {

/// The last values of a quantity, and how far a new one is from them.
class RunningScore {
 public:
  /// Deviations of `value` from the mean of the last 128 values, which it then
  /// joins. None before there are 16, or when they are all equal. A value that
  /// is not finite has no score and does not join.
  std::optional<double> add(double value);

 private:
  std::deque<double> values_;
};

struct StepProgress {
  int64_t step = 0;  // counted from 1
  int64_t num_steps = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
  std::optional<double> mfu = {};  // 1 is the device's peak; none: not known
  int64_t memory_bytes = 0;        // peak; 0: not known
  double seconds_left = 0;
};

/// Keeps the scores of a run.
class ProgressLine {
 public:
  /// For every step, also those that are not printed: the scores need them.
  void add(double loss, double grad_norm);

  /// With the scores of the last `add`.
  [[nodiscard]] std::string format(const StepProgress& progress) const;

 private:
  RunningScore losses_, norms_;
  std::optional<double> loss_score_, norm_score_;
};

/// "0:14:05"; "3 d 02:00:00" from a day on; "?" when not finite.
[[nodiscard]] std::string format_duration(double seconds);
/// "52,310".
[[nodiscard]] std::string with_commas(int64_t number);
/// "12.3 GiB", "870 MiB", "12 B".
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace tessera::train
