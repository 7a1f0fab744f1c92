// Decides: what each signal, each death and each deadline means for the ranks.
//
//   running --(a rank fails, or we are told to end)--> stopping --> all gone
//
// It neither waits nor starts anything; the job calls it when something
// happens.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/launch/rank_process.h"

namespace tessera::launch {

class Guard;

struct SupervisorOptions {
  std::chrono::milliseconds kill_after;
  int first_rank = 0;  // of this node
  // When a local rank wrote that it fails, if it did.
  std::function<std::optional<std::filesystem::file_time_type>(int)>
      time_of_error;
};

class Supervisor {
 public:
  using Say = std::function<void(const std::string&)>;

  Supervisor(SupervisorOptions options, Guard& guard, Say say)
      : options_(std::move(options)), guard_(guard), say_(std::move(say)) {}

  /// The next local rank (0, 1, ...) runs as `process`.
  void add_rank(pid_t process) { ranks_.emplace_back(process); }
  [[nodiscard]] bool all_gone() const;

  /// The launcher was sent `signal` (not SIGCHLD).
  void on_signal(int signal);
  /// Another node has failed, or its launcher was sent a signal: the ranks are
  /// sent `signal`.
  void stop_with_others(int signal, const std::string& reason);
  /// Collects the processes that have ended; the first failure stops the rest.
  void reap();
  /// Kills what is past its deadline.
  void enforce_deadlines();

  /// Until when the job may sleep, in milliseconds for poll; -1: for ever.
  [[nodiscard]] int milliseconds_to_next_deadline() const;
  /// Says which rank failed first, unless that was the last thing said.
  void report() const;
  [[nodiscard]] int exit_code() const;

  /// The local rank that failed first, unless it was told to end.
  [[nodiscard]] std::optional<int> culprit() const;
  /// What became of a local rank, with its rank in the job.
  [[nodiscard]] std::string describe(int rank) const;
  /// The signal that the launcher was sent to end the job; 0: none.
  [[nodiscard]] int interrupt() const { return interrupt_; }
  /// Ranks that not even SIGKILL has ended.
  [[nodiscard]] int num_running() const;

 private:
  void collect_ended(std::vector<int>& failed);
  void end_leftovers();
  void on_failures(const std::vector<int>& failed);
  [[nodiscard]] int first_of(const std::vector<int>& failed);
  void stop(int signal);
  void kill_all();
  void pause() const;
  void send_to_all(int signal) const;
  [[nodiscard]] bool died_of_the_stop(const ExitStatus& status) const;
  [[nodiscard]] const ExitStatus& first_status() const;
  [[nodiscard]] std::string name_of(int rank) const;  // with its process

  SupervisorOptions options_;
  Guard& guard_;
  Say say_;
  std::vector<RankProcess> ranks_;
  bool stopping_ = false;
  bool stopped_with_others_ = false;
  int stop_signal_ = 0;                    // what the ranks were sent
  int interrupt_ = 0;                      // what we were sent, if that was it
  std::optional<int> first_failure_ = {};  // a local rank
  int first_ended_ = 0;         // of the failed; not the first to fail if that
                                // one wrote so before and ended later
  bool others_ran_on_ = false;  // when the first failed
};

}  // namespace tessera::launch
