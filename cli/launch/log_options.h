// Where each rank's stdout and stderr go: torchrun's --redirects, --tee and
// --local-ranks-filter, and --tag-output. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

namespace tessera::launch {

enum class Stream { output, error };

/// One of torchrun's choices for each rank of a node: which streams it means.
struct StreamChoice {
  int all = 0;                      // bit 1: stdout, bit 2: stderr
  std::map<int, int> of_rank = {};  // local rank; the others then mean none

  [[nodiscard]] bool has(int local_rank, Stream stream) const;
  [[nodiscard]] bool empty() const;
};

/// Reads "0" to "3" (none, stdout, stderr, both), or "0:3,1:2" by local rank.
/// Errors: InvalidArgument that names `option`.
[[nodiscard]] StreamChoice parse_stream_choice(const std::string& option,
                                               const std::string& text);

/// Reads "0,2": local ranks. Errors: InvalidArgument.
[[nodiscard]] std::set<int> parse_local_ranks(const std::string& option,
                                              const std::string& text);

/// `plain`: ranks write where the launcher does. `tagged`: the launcher passes
/// on whole lines with "[rank N] " in front.
enum class OutputMode { plain, tagged };

struct LogOptions {
  std::string folder = "";  // empty: a temporary one
  StreamChoice redirects = {};
  StreamChoice tee = {};
  OutputMode output = OutputMode::plain;
  // The local ranks that may write to the console; unset: all.
  std::optional<std::set<int>> shown = {};

  /// Some stream of some rank goes to a file.
  [[nodiscard]] bool writes_files() const;
};

struct Route {
  bool file = false;
  enum class Console { none, as_is, tagged } console = Console::as_is;
};

/// A stream that is teed goes to both, one that is redirected to its file
/// alone. Ranks that are not shown keep their files and lose the console.
[[nodiscard]] Route route_of(const LogOptions& options, int local_rank,
                             Stream stream);

}  // namespace tessera::launch
