// Decides: what each signal, each death and each deadline means for the ranks.
//
//   running --(a rank fails, or we are told to end)--> stopping --> all gone
//
// It neither waits nor starts anything; the job calls it when something
// happens.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/rank_process.h"

namespace tessera::launch {

class Guard;

class Supervisor {
 public:
  using Say = std::function<void(const std::string&)>;

  Supervisor(std::chrono::milliseconds kill_after, Guard& guard, Say say)
      : kill_after_(kill_after), guard_(guard), say_(std::move(say)) {}

  /// The next rank (0, 1, ...) runs as `process`.
  void add_rank(pid_t process) { ranks_.emplace_back(process); }
  [[nodiscard]] bool all_gone() const;

  /// The launcher was sent `signal` (not SIGCHLD).
  void on_signal(int signal);
  /// Collects the processes that have ended; the first failure stops the rest.
  void reap();
  /// Kills what is past its deadline.
  void enforce_deadlines();

  /// Until when the job may sleep, in milliseconds for poll; -1: for ever.
  [[nodiscard]] int milliseconds_to_next_deadline() const;
  /// Says which rank failed first, unless that was the last thing said.
  void report() const;
  [[nodiscard]] int exit_code() const;

 private:
  void collect_ended(std::vector<int>& failed);
  void end_leftovers();
  void on_failures(const std::vector<int>& failed);
  void stop(int signal);
  void kill_all();
  void pause() const;
  void send_to_all(int signal) const;
  [[nodiscard]] int num_running() const;
  [[nodiscard]] bool died_of_the_stop(const ExitStatus& status) const;
  [[nodiscard]] std::string name_of(int rank) const;   // with its process
  [[nodiscard]] std::string describe(int rank) const;  // and how it ended

  std::chrono::milliseconds kill_after_;
  Guard& guard_;
  Say say_;
  std::vector<RankProcess> ranks_;
  bool stopping_ = false;
  int stop_signal_ = 0;                    // what the ranks were sent
  int interrupt_ = 0;                      // what we were sent, if that was it
  std::optional<int> first_failure_ = {};  // a rank
  bool others_ran_on_ = false;             // when the first failed
};

}  // namespace tessera::launch
