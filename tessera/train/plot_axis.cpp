#include "tessera/train/plot_axis.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace tessera::train {
namespace {

constexpr double kMargin = 0.03;      // of the values' range, at both ends
constexpr int kMostSteps = 8;         // between ticks
constexpr double kWideDecades = 1.2;  // from here on, powers of ten suffice

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

/// 1, 2 or 5 times a power of ten, the smallest of which eight
/// reach over `range`; at least three fit into it then.
double round_step(double range) {
  const double wanted = range / kMostSteps;
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= wanted) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string tick_label(double value) {
  const double size = std::abs(value);
  if (size >= 1e12 || (size > 0 && size < 1e-3)) return short_number(value);
  if (size >= 1e9) return short_number(value / 1e9) + "G";
  if (size >= 1e6) return short_number(value / 1e6) + "M";
  if (size >= 1e4) return short_number(value / 1e3) + "k";
  return short_number(value);
}

PlotAxis::PlotAxis(double low, double high, Scale scale)
    : scale_(scale),
      low_(scale == Scale::linear ? low : std::log10(low)),
      high_(scale == Scale::linear ? high : std::log10(high)) {
  double room = (high_ - low_) * kMargin;
  // Equal values, or as good as equal: a tenth of their size, or 1 for zero.
  const double size = std::max(std::abs(low_), std::abs(high_));
  if (high_ - low_ <= size * 1e-9) room = size > 0 ? size / 10 : 1.0;
  low_ -= room;
  high_ += room;
}

double PlotAxis::place(double value) const {
  const double at = scale_ == Scale::linear ? value : std::log10(value);
  return (at - low_) / (high_ - low_);
}

std::vector<Tick> PlotAxis::ticks() const {
  if (scale_ == Scale::linear) return linear_ticks(low_, high_);
  if (high_ - low_ >= kWideDecades) return decade_ticks();
  // Less than about a decade: round numbers, as on a linear axis.
  return linear_ticks(std::pow(10, low_), std::pow(10, high_));
}

std::vector<Tick> PlotAxis::linear_ticks(double low, double high) const {
  const double step = round_step(high - low);
  std::vector<Tick> ticks;
  for (double n = std::ceil(low / step); n * step <= high; ++n) {
    const double value = n == 0 ? 0.0 : n * step;  // no -0
    ticks.push_back({value, tick_label(value)});
  }
  return ticks;
}

std::vector<Tick> PlotAxis::decade_ticks() const {
  const bool few = high_ - low_ < 3;
  const double every = std::max(1.0, std::ceil((high_ - low_) / 8));
  std::vector<Tick> ticks;
  for (double power = std::floor(low_); power <= high_; power += every) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double at = power + std::log10(factor);
      if (at < low_ || at > high_ || (factor > 1 && !few)) continue;
      const double value = factor * std::pow(10, power);
      ticks.push_back({value, tick_label(value)});
    }
  }
  return ticks;
}

}  // namespace tessera::train
