// How an attempt of a job ended, agreed by all its nodes.
#pragma once

#include <string>

namespace tessera::launch {

struct Outcome {
  enum class Kind {
    done,         // all ranks ended with 0
    failed,       // a rank failed
    interrupted,  // a launcher was sent a signal
    node_lost,    // a launcher went away without a word
    not_met,      // the nodes did not all come, or do not fit together
    regrouped,    // another node has come: all meet anew, with it
  };
  Kind kind = Kind::done;
  int exit_code = 0;  // of the rank that failed, or the launcher's own
  int signal = 0;     // of an interrupted job
  std::string text;   // a sentence without its full stop

  /// Another attempt may go better.
  [[nodiscard]] bool may_restart() const {
    return kind == Kind::failed || kind == Kind::node_lost ||
           kind == Kind::regrouped;
  }
  /// ... which is one of --max-restarts.
  [[nodiscard]] bool restart_counts() const { return kind != Kind::regrouped; }
};

/// One line, and back. Errors: InvalidArgument for a line of another program.
[[nodiscard]] std::string to_line(const Outcome& outcome);
[[nodiscard]] Outcome outcome_of_line(const std::string& line);

}  // namespace tessera::launch
