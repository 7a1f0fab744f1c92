// Lines for people, on standard error, each with level and rank:
//
//   [tessera rank 3] warning: fully_shard: parameter 'head.weight' is shared
//   ...
//
// The level comes from TESSERA_LOG_LEVEL (debug, info, warning, error; info
// when unset). Safe from any thread; a line is written whole.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

enum class LogLevel { debug, info, warning, error };

/// True when lines of this level are written.
[[nodiscard]] bool logs(LogLevel level);

void log(LogLevel level, std::string_view line);

/// Like `log`, but writes one rank's line only the first time in this process.
void log_once(LogLevel level, std::string_view line);

template <class... Args>
void log_debug(const Args&... args) {
  if (logs(LogLevel::debug)) log(LogLevel::debug, str(args...));
}
template <class... Args>
void log_info(const Args&... args) {
  if (logs(LogLevel::info)) log(LogLevel::info, str(args...));
}
template <class... Args>
void log_warning(const Args&... args) {
  if (logs(LogLevel::warning)) log(LogLevel::warning, str(args...));
}
template <class... Args>
void log_error(const Args&... args) {
  log(LogLevel::error, str(args...));
}

/// The rank that stands in this process's lines, from now on.
void set_log_rank(int rank);

/// The rank of this thread's lines, while the object lives: for processes that
/// hold several ranks as threads.
class ThreadLogRank {
 public:
  explicit ThreadLogRank(int rank);
  ~ThreadLogRank();
  ThreadLogRank(const ThreadLogRank&) = delete;
  ThreadLogRank& operator=(const ThreadLogRank&) = delete;

 private:
  std::optional<int> previous_;
};

/// The rank as this thread's lines show it; empty before any is known.
[[nodiscard]] std::optional<int> log_rank();

}  // namespace tessera
