#include "tessera/train/metrics_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/config_value.h"
#include "tessera/train/failure.h"

namespace tessera::train {
namespace {

using nlohmann::json;

std::string json_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_value(const Metric& metric) {
  if (const auto* whole = std::get_if<int64_t>(&metric.value)) {
    return std::to_string(*whole);
  }
  if (const auto* number = std::get_if<double>(&metric.value)) {
    return std::isfinite(*number) ? to_toml(*number) : "null";
  }
  return json_text(std::get<std::string_view>(metric.value));
}

void require_written(bool ok, const std::string& path) {
  require(ok, ExitCode::cannot_write, [&] {
    return str("'", path, "' cannot be written (", std::strerror(errno), ").");
  });
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  require(file.is_open() && !file.bad(), ExitCode::missing_data, [&] {
    return str("'", path, "' cannot be read (", std::strerror(errno), ").");
  });
  return text.str();
}

/// Where the last whole line of an open file ends.
off_t end_of_lines(int file, const std::string& path) {
  off_t end = ::lseek(file, 0, SEEK_END);
  require_written(end >= 0, path);
  char last = '\n';
  while (end > 0 && ::pread(file, &last, 1, end - 1) == 1 && last != '\n') {
    --end;
  }
  return end;
}

MetricsRow row_of(const std::string& line, const std::string& path,
                  size_t number) {
  const json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  require(object.is_object(), ExitCode::damaged_data, [&] {
    return str("'", path, "' line ", number, " is not a JSON object.");
  });
  MetricsRow row;
  for (const auto& [name, value] : object.items()) {
    if (value.is_number()) row[name] = value.get<double>();
  }
  return row;
}

/// Calls `each` with every whole line that is not empty, and its numbers.
template <class Each>
void for_each_line(const std::string& path, Each&& each) {
  const std::string text = content_of(path);
  size_t start = 0;
  for (size_t number = 1; start < text.size(); ++number) {
    const size_t end = text.find('\n', start);
    if (end == text.npos) break;  // cut: the run was killed while it wrote
    const std::string line = text.substr(start, end - start);
    if (!line.empty()) each(line, row_of(line, path, number));
    start = end + 1;
  }
}

/// A reader finds the old content or the new one.
void replace_content(const std::string& path, const std::string& content) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    file << content;
    file.flush();
    require_written(file.good(), fresh);
  }
  require_written(::rename(fresh.c_str(), path.c_str()) == 0, path);
}

}  // namespace

std::string to_json(std::span<const Metric> metrics) {
  std::string line = "{";
  for (const Metric& metric : metrics) {
    line += str(line.size() > 1 ? "," : "", json_text(metric.name), ":",
                json_value(metric));
  }
  return line + "}";
}

MetricsWriter::MetricsWriter(const std::string& path, OpenFile how)
    : path_(path) {
  const int anew = how == OpenFile::anew ? O_TRUNC : 0;
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | anew, 0666);
  require_written(file_ >= 0, path_);
  const off_t end = end_of_lines(file_, path_);
  require_written(::ftruncate(file_, end) == 0, path_);
  require_written(::lseek(file_, end, SEEK_SET) == end, path_);
}

MetricsWriter::~MetricsWriter() {
  if (file_ >= 0) ::close(file_);
}

void MetricsWriter::write(std::span<const Metric> metrics) {
  const std::string line = to_json(metrics) + "\n";
  const off_t start = ::lseek(file_, 0, SEEK_CUR);
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  // A part of a line on a full disk: take it back, so that a later one is
  // whole.
  if (written >= 0) errno = ENOSPC;
  const int reason = errno;
  const bool taken_back = ::ftruncate(file_, start) == 0 &&
                          ::lseek(file_, start, SEEK_SET) == start;
  if (taken_back) errno = reason;
  require_written(false, path_);
}

std::vector<MetricsRow> read_metrics(const std::string& path) {
  std::vector<MetricsRow> rows;
  for_each_line(path, [&](const std::string&, MetricsRow row) {
    rows.push_back(std::move(row));
  });
  return rows;
}

void drop_metrics_after(const std::string& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for_each_line(path, [&](const std::string& line, const MetricsRow& row) {
    const auto at = row.find("step");
    const bool later =
        at != row.end() && at->second > static_cast<double>(step);
    if (!later) kept += line + "\n";
  });
  replace_content(path, kept);
}

}  // namespace tessera::train
