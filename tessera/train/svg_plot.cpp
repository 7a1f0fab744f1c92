#include "tessera/train/svg_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using Points = std::vector<std::pair<double, double>>;

// Told apart also by people who do not see red and green (Okabe and Ito).
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                "#e69f00", "#56b4e9", "#555555", "#a0522d"};
constexpr int kLeft = 70, kRight = 20, kTop = 44, kBottom = 52;
constexpr size_t kFewestToSmooth = 100;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        // XML has no other control characters.
        safe += static_cast<unsigned char>(letter) < 0x20 ? ' ' : letter;
    }
  }
  return safe;
}

bool has_place(double value, Scale scale) {
  return std::isfinite(value) && (scale == Scale::linear || value > 0);
}

/// From the smallest to the largest value that has a place.
struct Range {
  double low = kInfinity;
  double high = -kInfinity;

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

Points smoothed(const Points& points, double smooth) {
  Points result;
  double sum = 0, weight = 0;  // so that the first values count in full
  for (const auto& [x, y] : points) {
    if (!std::isfinite(y)) {
      result.emplace_back(x, y);
      continue;
    }
    sum = smooth * sum + (1 - smooth) * y;
    weight = smooth * weight + (1 - smooth);
    result.emplace_back(x, sum / weight);
  }
  return result;
}

/// Draws one picture.
class Plot {
 public:
  Plot(std::span<const PlotSeries> series, const PlotOptions& options)
      : series_(series),
        options_(options),
        x_(axis(&Points::value_type::first, options.x_scale)),
        y_(axis(&Points::value_type::second, options.y_scale)) {}

  [[nodiscard]] std::string draw() {
    out_ = str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"",
               options_.width, "\" height=\"", options_.height,
               "\" viewBox=\"0 0 ", options_.width, " ", options_.height,
               "\" font-family=\"Helvetica, Arial, sans-serif\" "
               "font-size=\"12\" fill=\"#333\">\n"
               "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    draw_grid();
    draw_labels();
    for (size_t i = 0; i < series_.size(); ++i) draw_series(i);
    draw_legend();
    return out_ + "</svg>\n";
  }

 private:
  [[nodiscard]] PlotAxis axis(double Points::value_type::*part,
                              Scale scale) const {
    Range range;
    for (const PlotSeries& each : series_) {
      for (const auto& point : each.points) {
        if (shows(point)) range.add(point.*part);
      }
    }
    require<InvalidArgument>(range.low <= range.high, [&] {
      return str("there is no point to plot",
                 options_.y_scale == Scale::logarithmic
                     ? " above 0, as a logarithmic axis needs"
                     : "",
                 ".");
    });
    return {range.low, range.high, scale};
  }

  [[nodiscard]] bool shows(const std::pair<double, double>& point) const {
    return has_place(point.first, options_.x_scale) &&
           has_place(point.second, options_.y_scale);
  }

  [[nodiscard]] double right() const { return options_.width - kRight; }
  [[nodiscard]] double bottom() const { return options_.height - kBottom; }
  [[nodiscard]] double left_of(double x) const {
    return kLeft + x_.place(x) * (right() - kLeft);
  }
  [[nodiscard]] double top_of(double y) const {
    return bottom() - y_.place(y) * (bottom() - kTop);
  }

  void line(double x1, double y1, double x2, double y2, const char* color) {
    out_ += str("<line x1=\"", number(x1), "\" y1=\"", number(y1), "\" x2=\"",
                number(x2), "\" y2=\"", number(y2), "\" stroke=\"", color,
                "\"/>\n");
  }

  void text(double x, double y, const std::string& attributes,
            const std::string& words) {
    if (words.empty()) return;
    out_ += str("<text x=\"", number(x), "\" y=\"", number(y), "\" ",
                attributes, ">", escaped(words), "</text>\n");
  }

  void draw_grid() {
    for (const Tick& tick : x_.ticks()) {
      const double x = left_of(tick.value);
      line(x, kTop, x, bottom(), "#eee");
      line(x, bottom(), x, bottom() + 4, "#333");
      text(x, bottom() + 18, "text-anchor=\"middle\"", tick.label);
    }
    for (const Tick& tick : y_.ticks()) {
      const double y = top_of(tick.value);
      line(kLeft, y, right(), y, "#eee");
      line(kLeft - 4, y, kLeft, y, "#333");
      text(kLeft - 8, y + 4, "text-anchor=\"end\"", tick.label);
    }
    line(kLeft, bottom(), right(), bottom(), "#333");
    line(kLeft, kTop, kLeft, bottom(), "#333");
  }

  void draw_labels() {
    const double middle = (kLeft + right()) / 2;
    const double height = (kTop + bottom()) / 2;
    text(middle, 26, "text-anchor=\"middle\" font-size=\"16\"", options_.title);
    text(middle, options_.height - 12, "text-anchor=\"middle\"",
         options_.x_label);
    text(18, height,
         str("text-anchor=\"middle\" transform=\"rotate(-90 18 ",
             number(height), ")\""),
         options_.y_label);
  }

  void draw_series(size_t index) {
    const Points& points = series_[index].points;
    const char* color = kColors[index % kColors.size()];
    if (options_.smooth > 0 && points.size() >= kFewestToSmooth) {
      draw_line(points, color, "stroke-width=\"1\" stroke-opacity=\"0.25\"");
      draw_line(smoothed(points, options_.smooth), color,
                "stroke-width=\"1.8\"");
    } else {
      draw_line(points, color, "stroke-width=\"1.5\"");
    }
  }

  void draw_line(const Points& points, const char* color,
                 const char* attributes) {
    Points part;
    for (const auto& point : points) {
      if (shows(point)) {
        part.push_back(point);
      } else {
        draw_part(std::exchange(part, {}), color, attributes);
      }
    }
    draw_part(part, color, attributes);
  }

  void draw_part(const Points& part, const char* color,
                 const char* attributes) {
    if (part.empty()) return;
    if (part.size() == 1) {  // a line of one point would not be seen
      out_ += str("<circle cx=\"", number(left_of(part[0].first)), "\" cy=\"",
                  number(top_of(part[0].second)), "\" r=\"2.5\" fill=\"", color,
                  "\"/>\n");
      return;
    }
    out_ += str("<polyline fill=\"none\" stroke=\"", color, "\" ", attributes,
                " stroke-linejoin=\"round\" points=\"");
    for (const auto& [x, y] : thinned(part)) {
      out_ += number(left_of(x)) + "," + number(top_of(y)) + " ";
    }
    out_.back() = '"';
    out_ += "/>\n";
  }

  /// At most the lowest and highest point of each column of the picture, with
  /// the first and last point of all.
  [[nodiscard]] Points thinned(const Points& part) const {
    if (part.size() <= static_cast<size_t>(2 * options_.width)) return part;
    Points kept = {part.front()};
    for (size_t begin = 0; begin < part.size();) {
      const double column = std::floor(left_of(part[begin].first));
      size_t end = begin;
      while (end < part.size() &&
             std::floor(left_of(part[end].first)) == column) {
        ++end;
      }
      const auto first = part.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = part.begin() + static_cast<std::ptrdiff_t>(end);
      const auto [low, high] = std::minmax_element(
          first, last,
          [](const auto& a, const auto& b) { return a.second < b.second; });
      kept.push_back(std::min(*low, *high));
      kept.push_back(std::max(*low, *high));
      begin = end;
    }
    kept.push_back(part.back());
    return kept;
  }

  void draw_legend() {
    double y = kTop + 14;
    for (size_t i = 0; i < series_.size(); ++i, y += 18) {
      if (series_[i].name.empty()) continue;
      const char* color = kColors[i % kColors.size()];
      const double x = right() - 12;
      out_ += str("<rect x=\"", number(x - 22), "\" y=\"", number(y - 5.5),
                  "\" width=\"22\" height=\"3\" fill=\"", color, "\"/>\n");
      text(x - 28, y,
           "text-anchor=\"end\" stroke=\"#fff\" stroke-width=\"3\" "
           "paint-order=\"stroke\"",
           series_[i].name);
    }
  }

  std::span<const PlotSeries> series_;
  const PlotOptions& options_;
  PlotAxis x_, y_;
  std::string out_;
};

}  // namespace

std::string svg_plot(std::span<const PlotSeries> series,
                     const PlotOptions& options) {
  require<InvalidArgument>(options.smooth >= 0 && options.smooth < 1, [&] {
    return str("--smooth is ", options.smooth,
               "; give a number from 0 to less than 1.");
  });
  return Plot(series, options).draw();
}

}  // namespace tessera::train
