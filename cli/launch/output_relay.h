// All that the launcher writes: its own messages, and the tagged lines of
// ranks.
#pragma once

#include <poll.h>

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "cli/launch/file_descriptor.h"
#include "cli/launch/log_options.h"
#include "cli/launch/tagged_output.h"

namespace tessera::launch {

class OutputRelay {
 public:
  OutputRelay() = default;
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// Puts "tessera run: <message>" in line for stderr.
  void say(const std::string& message);
  /// Puts lines of another program in line for stderr, each indented.
  void quote(const std::string& lines);

  /// A pipe whose lines come out on our `stream` with "[rank N] " in front, and
  /// go as they are into `copy` if that is open.
  /// Returns: the end that the rank writes to; close it once the rank runs.
  /// Errors: LaunchError when the limit on open files is reached.
  [[nodiscard]] FileDescriptor add_rank(int rank, Stream stream,
                                        FileDescriptor copy);
  /// The last lines that came from the rank, from stderr if there are any.
  [[nodiscard]] std::string recent(int rank) const;

  /// What poll should watch: always in the same order.
  [[nodiscard]] std::vector<pollfd> polls() const;
  /// Reads and writes what poll found ready in the answer to polls().
  void handle(std::span<const pollfd> polls);

  /// Takes the last lines of all ranks, which must have ended.
  void finish();
  /// Forgets the ranks: others will come.
  void forget_ranks() { sources_.clear(); }
  /// Something is still to be written.
  [[nodiscard]] bool pending() const;

 private:
  struct Source {
    int rank;
    Stream stream;
    LineSource lines;
  };

  void say_when_a_copy_failed(const Source& source);

  LineSink output_{1};
  LineSink error_{2};
  std::deque<Source> sources_;
  bool said_that_a_copy_failed_ = false;
};

}  // namespace tessera::launch
