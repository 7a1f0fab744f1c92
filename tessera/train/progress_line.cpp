#include "tessera/train/progress_line.h"

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

constexpr size_t kWindow = 128;
constexpr size_t kFewest = 16;  // values that a deviation means something for

template <class... Args>
std::string formatted(const char* pattern, Args... args) {
  std::array<char, 64> text{};
  const int size = std::snprintf(text.data(), text.size(), pattern, args...);
  return {text.data(), std::min(text.size() - 1, static_cast<size_t>(size))};
}

std::string score_text(const std::optional<double>& score) {
  return score.has_value() ? formatted(" (%+.2fz)", *score) : "";
}

}  // namespace

std::optional<double> RunningScore::add(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  double sum = 0, squares = 0;
  for (const double each : values_) sum += each;
  const double count = static_cast<double>(values_.size());
  const double mean = sum / std::max(1.0, count);
  for (const double each : values_) squares += (each - mean) * (each - mean);
  const bool enough = values_.size() >= kFewest;
  values_.push_back(value);
  if (values_.size() > kWindow) values_.pop_front();
  if (!enough || squares == 0) return std::nullopt;
  return (value - mean) / std::sqrt(squares / count);
}

void ProgressLine::add(double loss, double grad_norm) {
  loss_score_ = losses_.add(loss);
  norm_score_ = norms_.add(grad_norm);
}

std::string ProgressLine::format(const StepProgress& p) const {
  const int width = static_cast<int>(std::to_string(p.num_steps).size());
  std::string line =
      formatted("step %*" PRId64 "/%" PRId64, width, p.step, p.num_steps);
  line += formatted(" | loss %.4f", p.loss) + score_text(loss_score_);
  line += formatted(" | norm %.4f", p.grad_norm) + score_text(norm_score_);
  line += formatted(" | lr %.2e", p.lr);
  line += " | " + with_commas(std::llround(p.tokens_per_second)) + " tok/s";
  if (p.mfu.has_value()) line += formatted(" | %.1f%% MFU", 100 * *p.mfu);
  if (p.memory_bytes > 0) {
    line += " | " + format_bytes(static_cast<double>(p.memory_bytes));
  }
  return line + " | ETA " + format_duration(p.seconds_left);
}

std::string format_duration(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0 && seconds < kLongest)) return "?";
  const auto total = static_cast<int64_t>(seconds + 0.5);
  const int64_t days = total / 86400, hours = total / 3600 % 24;
  const int64_t minutes = total / 60 % 60, rest = total % 60;
  if (days > 0) {
    return formatted("%" PRId64 " d %02" PRId64 ":%02" PRId64 ":%02" PRId64,
                     days, hours, minutes, rest);
  }
  return formatted("%" PRId64 ":%02" PRId64 ":%02" PRId64, hours, minutes,
                   rest);
}

std::string with_commas(int64_t number) {
  std::string digits = std::to_string(number);
  const int64_t first = number < 0 ? 1 : 0;
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string format_bytes(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  // 999.5 would print as 1000: four digits, as 1023 would.
  for (; bytes >= 999.5 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return formatted("%.*f %s", digits, bytes, kUnits[unit]);
}

}  // namespace tessera::train
