#include "tessera/train/run_curves.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/nearest_name.h"
#include "tessera/train/failure.h"
#include "tessera/train/metrics_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLoss = "loss";
constexpr const char* kHeldOutLoss = "held_out_loss";

std::string metrics_path(const std::string& run) {
  return fs::is_directory(run) ? run + "/metrics.jsonl" : run;
}

/// The folder's own name: "runs/a/" and "runs/a/metrics.jsonl" are both "a".
std::string run_name(const std::string& run) {
  fs::path path = fs::path(run).lexically_normal();
  if (path.filename() == "metrics.jsonl") path = path.parent_path();
  if (!path.has_filename()) path = path.parent_path();
  return path.empty() || path == "." ? "run" : path.filename().string();
}

std::vector<std::string> keys_of(const std::vector<MetricsRow>& rows) {
  std::set<std::string> keys;
  for (const MetricsRow& row : rows) {
    for (const auto& [key, value] : row) keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

std::vector<std::pair<double, double>> points_of(
    const std::vector<MetricsRow>& rows, const std::string& x,
    const std::string& y) {
  std::map<double, double> by_x;
  for (const MetricsRow& row : rows) {
    if (row.contains(x) && row.contains(y)) by_x[row.at(x)] = row.at(y);
  }
  return {by_x.begin(), by_x.end()};
}

void require_points(const PlotSeries& series, const std::string& run,
                    const std::string& key,
                    const std::vector<MetricsRow>& rows) {
  require(!series.points.empty(), ExitCode::missing_data, [&] {
    const auto keys = keys_of(rows);
    const std::string nearest = nearest_name(key, keys);
    std::string all;
    for (const auto& each : keys) all += (all.empty() ? "" : ", ") + each;
    return str("'", metrics_path(run), "' has no values of '", key, "'; ",
               nearest.empty() ? "" : "did you mean '" + nearest + "'? ",
               all.empty() ? "it is empty" : "it has " + all, ".");
  });
}

void add_run(const std::string& run, const CurvesOptions& options,
             std::vector<PlotSeries>& all) {
  const auto rows = read_metrics(metrics_path(run));
  const bool automatic = options.keys.empty();
  const std::vector<std::string> keys =
      automatic ? std::vector<std::string>{kLoss, kHeldOutLoss} : options.keys;
  for (const std::string& key : keys) {
    const std::string name =
        keys.size() == 1 ? run_name(run) : run_name(run) + " " + key;
    PlotSeries series{name, points_of(rows, options.x_key, key)};
    const bool may_lack = automatic && key == kHeldOutLoss;
    if (may_lack && series.points.empty()) continue;
    require_points(series, run, key, rows);
    all.push_back(std::move(series));
  }
}

}  // namespace

std::vector<PlotSeries> run_curves(const CurvesOptions& options) {
  tessera::require(!options.runs.empty(), [] {
    return str("give at least one run: its folder, or its metrics.jsonl.");
  });
  std::vector<PlotSeries> all;
  for (const std::string& run : options.runs) add_run(run, options, all);
  return all;
}

void write_curves(const CurvesOptions& options) {
  PlotOptions plot = options.plot;
  if (plot.x_label.empty()) plot.x_label = options.x_key;
  if (plot.y_label.empty()) {
    plot.y_label = options.keys.empty() ? kLoss : options.keys.front();
  }
  const std::string svg = svg_plot(run_curves(options), plot);
  std::ofstream file(options.output, std::ios::binary);
  file << svg << std::flush;
  require(file.good(), ExitCode::cannot_write, [&] {
    return str("'", options.output, "' cannot be written (",
               std::strerror(errno), ").");
  });
}

}  // namespace tessera::train
