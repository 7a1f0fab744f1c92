// Lines in a picture, as SVG text that every browser shows.
//
//   std::string svg = svg_plot({{"run", points}}, {.title = "Loss",
//                                                  .x_label = "step"});
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/train/plot_axis.h"

namespace tessera::train {

struct PlotSeries {
  std::string name;                               // in the legend
  std::vector<std::pair<double, double>> points;  // x, y; in the order of x
};

struct PlotOptions {
  std::string title = {};
  std::string x_label = "step";
  std::string y_label = {};
  Scale x_scale = Scale::linear;
  Scale y_scale = Scale::linear;
  // In [0, 1): how much of a line's last value stays in its next. Above 0, the
  // values themselves stand pale behind the smooth line. Lines of fewer than
  // 100 points stay as they are.
  double smooth = 0;
  int width = 840;
  int height = 480;
};

/// A point that is not finite, or not above 0 on a logarithmic axis, breaks its
/// line. Of long series each column keeps its lowest and highest point.
/// Errors: InvalidArgument when there is no point to show, or for a smooth
///         outside [0, 1).
[[nodiscard]] std::string svg_plot(std::span<const PlotSeries> series,
                                   const PlotOptions& options = {});
[[nodiscard]] inline std::string svg_plot(
    std::initializer_list<PlotSeries> series, const PlotOptions& options = {}) {
  return svg_plot(std::span(series.begin(), series.size()), options);
}

}  // namespace tessera::train
