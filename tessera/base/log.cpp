#include "tessera/base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include "tessera/base/environment.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kLevelNames = {"debug", "info",
                                                         "warning", "error"};
constexpr int kNoRank = -1;

// Log lines describe the process, so their rank belongs to the process.
struct LogState {
  std::atomic<int> rank = kNoRank;
  std::mutex mutex;
  std::set<std::string, std::less<>> said_once;
};

LogState& state() {
  static LogState* state = new LogState;  // lives on for lines at exit
  return *state;
}

std::optional<int>& thread_rank() {
  thread_local std::optional<int> rank;
  return rank;
}

// One write call, so that the lines of several processes do not mix.
void write_whole(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

LogLevel find_level() {
  const std::string text = environment::log_level().value_or("info");
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (text == kLevelNames[i]) return static_cast<LogLevel>(i);
  }
  write_whole(str("[tessera] warning: TESSERA_LOG_LEVEL is '", text,
                  "', so info is taken; set it to debug, info, warning or ",
                  "error.\n"));
  return LogLevel::info;
}

LogLevel lowest_level() {
  static const LogLevel level = find_level();
  return level;
}

std::string with_prefix(LogLevel level, std::string_view line) {
  const std::optional<int> rank = log_rank();
  return str("[tessera", rank ? str(" rank ", *rank) : "", "] ",
             kLevelNames[static_cast<size_t>(level)], ": ", line, "\n");
}

}  // namespace

bool logs(LogLevel level) { return level >= lowest_level(); }

void log(LogLevel level, std::string_view line) {
  if (logs(level)) write_whole(with_prefix(level, line));
}

void log_once(LogLevel level, std::string_view line) {
  {
    const std::lock_guard lock(state().mutex);
    if (!state().said_once.insert(with_prefix(level, line)).second) return;
  }
  log(level, line);
}

void set_log_rank(int rank) { state().rank = rank; }

ThreadLogRank::ThreadLogRank(int rank) : previous_(thread_rank()) {
  thread_rank() = rank;
}

ThreadLogRank::~ThreadLogRank() { thread_rank() = previous_; }

std::optional<int> log_rank() {
  if (thread_rank()) return thread_rank();
  const int rank = state().rank;
  return rank == kNoRank ? std::nullopt : std::optional<int>(rank);
}

}  // namespace tessera
