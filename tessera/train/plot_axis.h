// One axis of a plot: from numbers to places, and where its ticks stand.
#pragma once

#include <string>
#include <vector>

namespace tessera::train {

enum class Scale { linear, logarithmic };

struct Tick {
  double value = 0;
  std::string label;
};

class PlotAxis {
 public:
  /// For values from low to high, with low <= high, both finite; with a
  /// logarithmic scale, both above 0. The axis reaches a little further, so
  /// that lines do not touch the frame; equal values get room on both sides.
  PlotAxis(double low, double high, Scale scale);

  /// 0 at the low end of the axis, 1 at its high end.
  [[nodiscard]] double place(double value) const;
  /// Three to nine round numbers inside the axis.
  [[nodiscard]] std::vector<Tick> ticks() const;

 private:
  [[nodiscard]] std::vector<Tick> linear_ticks(double low, double high) const;
  [[nodiscard]] std::vector<Tick> decade_ticks() const;

  Scale scale_;
  double low_, high_;  // of the axis; exponents of 10 when logarithmic
};

/// 0.25, 1,000, 2.5M, 1e-05: short, for a tick.
[[nodiscard]] std::string tick_label(double value);

}  // namespace tessera::train
