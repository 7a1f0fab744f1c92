// metrics.jsonl: what a run measured, one JSON object a line.
//
//   MetricsWriter metrics("run/metrics.jsonl", OpenFile::anew);
//   metrics.write({{"step", 10}, {"loss", 3.2}, {"split", "train"}});
//
//   {"step":10,"loss":3.2,"split":"train"}
//
// A line is on its way to the disk when `write` returns, so that a run that is
// killed leaves all its lines whole. nan and infinity, which JSON does not
// have, are written as null.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::train {

struct Metric {
  std::string_view name;
  std::variant<int64_t, double, std::string_view> value;

  Metric(std::string_view n, int v) : name(n), value(int64_t{v}) {}
  Metric(std::string_view n, int64_t v) : name(n), value(v) {}
  Metric(std::string_view n, double v) : name(n), value(v) {}
  Metric(std::string_view n, const char* v) : name(n), value(v) {}
  Metric(std::string_view n, std::string_view v) : name(n), value(v) {}
};

/// One line, without its end. Doubles keep all their digits.
[[nodiscard]] std::string to_json(std::span<const Metric> metrics);

enum class OpenFile {
  anew,
  append,  // for a run that goes on; what is left of a cut last line goes
};

/// Takes the lines of steps after `step` out of a file, for a run that goes on
/// after that step and writes them again. One that is not there is fine.
/// Errors: as read_metrics, and Failure (cannot_write).
void drop_metrics_after(const std::string& path, int64_t step);

class MetricsWriter {
 public:
  /// Errors, here and below: Failure (cannot_write) that names the file and the
  /// system's reason, as when the disk is full. The run may go on: the lines
  /// before stay whole, and the next `write` tries again.
  MetricsWriter(const std::string& path, OpenFile how);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void write(std::initializer_list<Metric> metrics) {
    write(std::span(metrics.begin(), metrics.size()));
  }
  void write(std::span<const Metric> metrics);

 private:
  std::string path_;
  int file_ = -1;
};

/// The numbers of one line; null, texts and the like are left out.
using MetricsRow = std::map<std::string, double>;

/// All lines; one that was cut at the end of the file is left out.
/// Errors: Failure (missing_data) for a file that cannot be read, or
///         (damaged_data) with the number of a line that is no JSON object.
[[nodiscard]] std::vector<MetricsRow> read_metrics(const std::string& path);

}  // namespace tessera::train
