#include "cli/launch/log_folder.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/launch/launch_error.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

// A run id may hold anything.
std::string file_name_of(std::string run_id) {
  std::ranges::replace(run_id, '/', '_');
  return run_id;
}

[[noreturn]] void throw_no_folder(const fs::path& path,
                                  const std::string& reason) {
  throw LaunchError(kExitLauncher,
                    str("cannot make a folder for logs in '", path.string(),
                        "': ", reason, "; give another --log-dir (or TMPDIR)"));
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_no_folder(path, error.message());
}

}  // namespace

LogFolder::LogFolder(const LogOptions& options, const std::string& run_id)
    : removed_at_end_(options.folder.empty() && !options.writes_files()) {
  std::error_code ignored;
  const fs::path parent = options.folder.empty()
                              ? fs::temp_directory_path(ignored)
                              : fs::absolute(options.folder);
  make_folder(parent);
  std::string name = parent / (file_name_of(run_id) + "_XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) {
    throw_no_folder(parent, std::strerror(errno));
  }
  path_ = name;
}

LogFolder::~LogFolder() {
  std::error_code ignored;
  if (removed_at_end_) fs::remove_all(path_, ignored);
}

void LogFolder::begin_attempt(int attempt, int num_ranks) {
  attempt_ = path_ / str("attempt_", attempt);
  for (int rank = 0; rank < num_ranks; ++rank) {
    make_folder(attempt_ / std::to_string(rank));
  }
}

fs::path LogFolder::log_file(int local_rank, Stream stream) const {
  return attempt_ / std::to_string(local_rank) /
         (stream == Stream::output ? "stdout.log" : "stderr.log");
}

fs::path LogFolder::error_file(int local_rank) const {
  return attempt_ / std::to_string(local_rank) / "error.json";
}

std::optional<RankError> read_error_file(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return std::nullopt;
  const auto& message = json["message"];
  if (message.is_string()) return RankError{message.get<std::string>(), time};
  if (!message.is_object() || !message.contains("message")) return std::nullopt;
  const auto& inner = message["message"];
  return RankError{inner.is_string() ? inner.get<std::string>() : inner.dump(),
                   time};
}

std::string last_lines(const std::string& text, int num_lines) {
  size_t begin = text.size();
  while (begin > 0 && text[begin - 1] == '\n') --begin;
  const size_t end = begin;
  for (int line = 0; line < num_lines && begin > 0; ++line) {
    const size_t newline = text.rfind('\n', begin - 1);
    if (newline == std::string::npos) return text.substr(0, end);
    begin = newline;
  }
  if (begin < end && text[begin] == '\n') ++begin;
  return text.substr(begin, end - begin);
}

std::string end_of_file(const fs::path& path) {
  constexpr std::streamoff kLongest = 16 * 1024;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kLongest));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tessera::launch
