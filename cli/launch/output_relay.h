// All that the launcher writes: its own messages, and the tagged lines of
// ranks.
#pragma once

#include <poll.h>

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "cli/launch/file_descriptor.h"
#include "cli/launch/tagged_output.h"

namespace tessera::launch {

class OutputRelay {
 public:
  /// What a rank writes to. Close them once the rank has been started.
  struct WriteEnds {
    FileDescriptor output;
    FileDescriptor error;
  };

  OutputRelay() = default;
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// Puts "tessera run: <message>" in line for stderr.
  void say(const std::string& message);
  /// Pipes whose lines come out with "[rank N] " in front.
  /// Errors: LaunchError when the limit on open files is reached.
  [[nodiscard]] WriteEnds add_rank(int rank);

  /// What poll should watch: always in the same order.
  [[nodiscard]] std::vector<pollfd> polls() const;
  /// Reads and writes what poll found ready in the answer to polls().
  void handle(std::span<const pollfd> polls);

  /// Takes the last lines of all ranks, which must have ended.
  void finish();
  /// Something is still to be written.
  [[nodiscard]] bool pending() const;

 private:
  FileDescriptor add_source(const std::string& prefix, LineSink& sink);

  LineSink output_{1};
  LineSink error_{2};
  std::deque<LineSource> sources_;
};

}  // namespace tessera::launch
