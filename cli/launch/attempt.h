// One attempt of a job on this node: its ranks, from start to the last process.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cli/launch/guard.h"
#include "cli/launch/job.h"
#include "cli/launch/log_folder.h"
#include "cli/launch/output_relay.h"
#include "cli/launch/rank_output.h"
#include "cli/launch/signal_queue.h"
#include "cli/launch/supervisor.h"

namespace tessera::launch {

/// What all attempts of a job share.
struct JobParts {
  const JobOptions& options;
  OutputRelay& relay;
  SignalQueue& signals;
  Guard& guard;
  LogFolder& folder;
};

class Attempt {
 public:
  Attempt(const JobParts& parts, const JobPlace& place);

  /// Starts the ranks. An error on the way leaves some; ~Guard kills them.
  void start();
  [[nodiscard]] Supervisor& supervisor() { return supervisor_; }
  [[nodiscard]] const Supervisor& supervisor() const { return supervisor_; }

  /// How it ended here, as far as this node knows. For when a rank has failed,
  /// or all are gone.
  [[nodiscard]] Outcome outcome() const;
  /// Says what is known of the rank that failed first: what it wrote into its
  /// error file, and its last lines.
  void report() const;

 private:
  void start_rank(int local_rank, int input);

  JobParts parts_;
  JobPlace place_;
  RankOutput output_;
  Supervisor supervisor_;
};

}  // namespace tessera::launch
