// How far a long task has come, on a terminal and only there.
//
//   ProgressBar bar("preparing", total_bytes);
//   bar.advance(bytes);      // often
//   bar.finish();
//
//   preparing [#########...........]  45%  1.2 GiB/s  0:00:31 left
//
// Standard error must be a terminal; otherwise nothing is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera {

/// The line for this state, without its end. rate: bytes a second.
[[nodiscard]] std::string format_progress(const std::string& title,
                                          double share, double rate,
                                          double seconds_left);

class ProgressBar {
 public:
  /// total: units of the whole task. With 0 nothing is drawn.
  ProgressBar(std::string title, int64_t total);
  /// Wipes the bar away.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void advance(int64_t units);
  /// Wipes the bar away; later calls do nothing.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(Clock::time_point now);

  std::string title_;
  int64_t total_;
  int64_t done_ = 0;
  bool visible_;  // there is a terminal, and the task goes on
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace tessera
