#include "cli/launch/supervisor.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "cli/launch/guard.h"
#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

// The kernel kills within this, unless a driver holds the process.
constexpr milliseconds kKillTakesEffect = std::chrono::seconds(10);
// How often to look at a group whose leader is gone: its members need not be
// our children, so no signal tells of their end.
constexpr milliseconds kLeftoverPoll = milliseconds(20);

std::string ranks_text(int num_ranks) {
  return str(num_ranks, num_ranks == 1 ? " rank" : " ranks");
}

std::string seconds_text(milliseconds time) {
  return str(static_cast<double>(time.count()) / 1000.0, " s");
}

}  // namespace

bool Supervisor::all_gone() const {
  return std::ranges::all_of(ranks_, &RankProcess::gone);
}

int Supervisor::num_running() const {
  return static_cast<int>(std::ranges::count_if(ranks_, &RankProcess::running));
}

std::string Supervisor::name_of(int rank) const {
  return str("rank ", options_.first_rank + rank, " (process ",
             ranks_[rank].process(), ")");
}

std::string Supervisor::describe(int rank) const {
  const auto& status = ranks_[rank].status();
  return str(name_of(rank), " ",
             status ? status->describe() : "has written that it fails");
}

void Supervisor::send_to_all(int signal) const {
  for (const RankProcess& rank : ranks_) rank.send(signal);
}

void Supervisor::on_signal(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return send_to_all(signal);
  if (signal == SIGTSTP) return pause();
  if (signal == SIGINT && stopping_) return kill_all();
  if (!stopping_) {
    interrupt_ = signal;
    say_(str("got ", signal_name(signal), "; passed it on to ",
             ranks_text(num_running()), ", which have ",
             seconds_text(options_.kill_after), " to end",
             signal == SIGINT ? ". Ctrl-C again kills them at once." : "."));
  }
  stop(signal);
}

// SIGTSTP would be lost on the ranks: they are alone in their sessions.
void Supervisor::pause() const {
  send_to_all(SIGSTOP);
  ::raise(SIGSTOP);
  send_to_all(SIGCONT);
}

void Supervisor::stop_with_others(int signal, const std::string& reason) {
  if (stopping_ || all_gone()) return;
  stopped_with_others_ = true;
  say_(str(reason, ". Stopping the ", ranks_text(num_running()), " here (",
           signal_name(signal), ", then SIGKILL after ",
           seconds_text(options_.kill_after), ")."));
  stop(signal);
}

// A rank that is about to end of its own error is left to do so.
void Supervisor::stop(int signal) {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const bool failing = !stopping_ && interrupt_ == 0 && first_failure_ &&
                         static_cast<size_t>(*first_failure_) == i;
    if (!failing || !ranks_[i].running()) ranks_[i].send(signal);
  }
  if (stopping_) return;
  stopping_ = true;
  stop_signal_ = signal;
  for (RankProcess& rank : ranks_) {
    rank.set_deadline(Clock::now() + options_.kill_after);
  }
}

void Supervisor::kill_all() {
  say_("killing the ranks at once.");
  for (RankProcess& rank : ranks_) {
    if (!rank.gone()) rank.kill(Clock::now() + kKillTakesEffect);
  }
}

void Supervisor::reap() {
  std::vector<int> failed;
  collect_ended(failed);
  if (!failed.empty() && !first_failure_) on_failures(failed);
  end_leftovers();
}

// What a dead rank left behind comes to us too, and is passed over.
void Supervisor::collect_ended(std::vector<int>& failed) {
  int wait_status = 0;
  for (pid_t process = 0;
       (process = ::waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    const auto found =
        std::ranges::find(ranks_, process, &RankProcess::process);
    if (found == ranks_.end()) continue;
    found->set_status(ExitStatus(wait_status));
    if (!found->status()->success()) {
      failed.push_back(static_cast<int>(found - ranks_.begin()));
    }
  }
}

void Supervisor::end_leftovers() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& rank = ranks_[i];
    if (rank.update_gone()) guard_.forget(rank.process());
    if (rank.running() || rank.gone() || rank.deadline()) continue;
    say_(str("rank ", options_.first_rank + static_cast<int>(i),
             " has ended but left processes; they get SIGTERM."));
    rank.send(SIGTERM);
    rank.set_deadline(Clock::now() + options_.kill_after);
  }
}

// Deaths seen together have no order. One by a signal is the likelier cause:
// peers of a rank that crashes fail with an exit code. A rank that wrote its
// error down before any of them is likelier still: it may take long to die.
int Supervisor::first_of(const std::vector<int>& failed) {
  const auto by_signal = std::ranges::find_if(
      failed, [&](int rank) { return ranks_[rank].status()->signal() != 0; });
  first_ended_ = by_signal != failed.end() ? *by_signal : failed.front();
  int first = first_ended_;
  auto earliest = std::filesystem::file_time_type::clock::now();
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const auto time = options_.time_of_error(rank);
    const auto& status = ranks_[rank].status();
    if (!time || *time >= earliest || (status && status->success())) continue;
    first = rank;
    earliest = *time;
  }
  return first;
}

void Supervisor::on_failures(const std::vector<int>& failed) {
  first_failure_ = first_of(failed);
  if (stopping_) return;
  std::string message = describe(*first_failure_) + ".";
  for (const int rank : failed) {
    if (rank == *first_failure_) continue;
    message += str(" At the same time ", describe(rank), ".");
  }
  others_ran_on_ = num_running() > 0;
  if (others_ran_on_) {
    message += str(" Stopping the ", ranks_text(num_running()),
                   " still running (SIGTERM, then SIGKILL after ",
                   seconds_text(options_.kill_after), ").");
  }
  say_(message);
  stop(SIGTERM);
}

void Supervisor::enforce_deadlines() {
  for (size_t i = 0; i < ranks_.size(); ++i) {
    RankProcess& rank = ranks_[i];
    if (rank.gone() || !rank.deadline() || *rank.deadline() > Clock::now()) {
      continue;
    }
    const std::string who = name_of(static_cast<int>(i));
    if (rank.killed()) {
      say_(str(who,
               " does not end even by SIGKILL; it hangs in the kernel. "
               "Leaving it."));
      rank.give_up();
    } else {
      say_(str(who, rank.running() ? "" : " left processes that",
               " did not end within ", seconds_text(options_.kill_after),
               "; killing ", rank.running() ? "it." : "them."));
      rank.kill(Clock::now() + kKillTakesEffect);
    }
  }
}

int Supervisor::milliseconds_to_next_deadline() const {
  constexpr milliseconds kForEver = milliseconds(-1);
  milliseconds least = kForEver;
  for (const RankProcess& rank : ranks_) {
    if (rank.gone() || !rank.deadline()) continue;
    milliseconds left =
        std::chrono::ceil<milliseconds>(*rank.deadline() - Clock::now());
    if (!rank.running()) left = std::min(left, kLeftoverPoll);
    left = std::clamp(left, milliseconds(0), milliseconds(60'000));
    least = least == kForEver ? left : std::min(least, left);
  }
  return static_cast<int>(least.count());
}

void Supervisor::report() const {
  if (!first_failure_ || stopped_with_others_) return;
  const bool by_the_stop = died_of_the_stop(first_status());
  if (interrupt_ != 0 && !by_the_stop) {
    say_(str("after ", signal_name(interrupt_), ", ", describe(*first_failure_),
             "."));
  } else if (interrupt_ == 0 && others_ran_on_) {
    say_(str("the first to fail was ", name_of(*first_failure_), ": it ",
             first_status().describe(), "."));
  }
}

bool Supervisor::died_of_the_stop(const ExitStatus& status) const {
  return status.signal() != 0 &&
         (status.signal() == stop_signal_ || status.signal() == SIGKILL);
}

// One that wrote its error and would not end was killed like the others.
const ExitStatus& Supervisor::first_status() const {
  const auto& status = ranks_[*first_failure_].status();
  const bool own =
      status && (*first_failure_ == first_ended_ ||
                 (!status->success() && status->signal() != SIGKILL));
  return own ? *status : *ranks_[first_ended_].status();
}

std::optional<int> Supervisor::culprit() const {
  if (interrupt_ != 0 || stopped_with_others_) return std::nullopt;
  return first_failure_;
}

int Supervisor::exit_code() const {
  if (!first_failure_) {
    return num_running() == 0 ? 0 : 128 + SIGKILL;  // one would not even die
  }
  const ExitStatus& status = first_status();
  if (interrupt_ != 0 && died_of_the_stop(status)) return 128 + interrupt_;
  return status.code();
}

}  // namespace tessera::launch
