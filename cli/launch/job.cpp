#include "cli/launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>

#include "cli/launch/attempt.h"
#include "cli/launch/exit_status.h"
#include "cli/launch/launch_error.h"
#include "cli/launch/processors.h"
#include "cli/launch/reserved_port.h"
#include "cli/launch/spawn.h"

namespace tessera::launch {
namespace {

using std::chrono::milliseconds;

void check(const JobOptions& options) {
  require(options.num_ranks >= 1, [&] {
    return str("the number of ranks (-n) is ", options.num_ranks,
               "; give 1 or more");
  });
  require(!options.command.empty() && !options.command[0].empty(), [] {
    return str(
        "no command to run; put it after --, as in "
        "tessera run -n 2 -- ./train");
  });
  require(options.kill_after.count() >= 0, [&] {
    return str("--kill-after is ", options.kill_after.count(),
               " ms; give 0 or more");
  });
  check_process_limit(options.num_ranks);
}

// Were one of these closed, the next file opened would take its number.
void open_standard_files() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

// Rank 0 of one node listens itself; that of several finds a store there.
std::optional<ReservedPort> reserve_port(const JobOptions& options) {
  if (options.nodes) return std::nullopt;
  if (options.master_port) return ReservedPort(*options.master_port);
  return ReservedPort();
}

std::string signals_text(const std::vector<int>& signals) {
  std::string text;
  for (const int signal : signals) {
    text += (text.empty() ? "" : ",") + signal_name(signal);
  }
  return text;
}

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        signals_(options.ending_signals),
        port_(reserve_port(options)),
        run_id_(options.run_id.value_or(
            str("tessera-", ::getpid(), "-", port_ ? port_->number() : 0))),
        folder_(options.logs, run_id_) {
    if (options.nodes) nodes_ = std::make_unique<NodeLink>(*options.nodes);
  }

  int run();
  /// A thread hangs in the network: leave the process without its end.
  [[nodiscard]] bool hangs() const { return nodes_ && !nodes_->ended(); }

 private:
  JobPlace common_place();
  std::optional<JobPlace> meet_nodes();
  void run_attempt(const JobPlace& place);
  void wait_for_events(int longest_ms);
  void on_signal(int signal);
  void on_node_event(const NodeEvent& event);
  void tell_nodes();
  [[nodiscard]] bool restarts() const;
  void prepare_restart();
  int finish();
  void leave_nodes();

  const JobOptions& options_;
  OutputRelay relay_;
  SignalQueue signals_;
  Guard guard_;                       // before any thread: it forks and goes on
  std::optional<ReservedPort> port_;  // held until the job is over
  std::string run_id_;
  LogFolder folder_;
  std::unique_ptr<NodeLink> nodes_;

  // Of the present attempt.
  std::optional<Attempt> attempt_;
  std::optional<NodePlace> joined_;
  std::optional<Outcome> outcome_;  // once all nodes agree on it
  bool told_nodes_ = false;
  int interrupt_ = 0;     // while no rank runs
  int round_ = 0;         // of attempts
  int num_restarts_ = 0;  // those that count
  bool last_words_cut_ = false;
};

JobPlace Job::common_place() {
  JobPlace place;
  place.ranks_per_node = options_.num_ranks;
  place.world_size = options_.num_ranks;
  place.role = options_.role;
  place.master_address = options_.master_address;
  place.master_port = port_ ? port_->number() : options_.master_port.value();
  place.launcher_hosts_store = nodes_ != nullptr;
  place.run_id = run_id_;
  place.restart_count = round_;
  place.max_restarts = options_.max_restarts;
  place.signals = signals_text(options_.ending_signals);
  place.devices = options_.devices;
  const int num_processors = num_usable_processors();
  place.num_threads = threads_per_rank(options_.environment, options_.num_ranks,
                                       num_processors);
  if (place.num_threads && !attempt_) {
    relay_.say(str("OMP_NUM_THREADS is not set: each rank computes with ",
                   *place.num_threads, " of ", num_processors, " processors."));
  }
  return place;
}

// None when the nodes do not meet, or this launcher is told to end.
std::optional<JobPlace> Job::meet_nodes() {
  constexpr milliseconds kPatience = std::chrono::seconds(10);
  joined_.reset();
  nodes_->join(round_, num_restarts_);
  auto complains_at = Clock::now() + kPatience;
  while (!joined_ && !outcome_ && interrupt_ == 0) {
    wait_for_events(1000);
    if (Clock::now() < complains_at || joined_ || outcome_) continue;
    relay_.say(str("waiting for the other nodes at ", options_.nodes->address,
                   ", ", options_.nodes->group.join_timeout.count() / 1000,
                   " s in all."));
    complains_at = Clock::time_point::max();
  }
  if (!joined_) return std::nullopt;
  round_ = joined_->round;
  num_restarts_ = joined_->num_restarts;
  JobPlace place = common_place();
  place.num_nodes = joined_->num_nodes;
  place.node_rank = joined_->node_rank;
  place.first_rank = joined_->first_rank;
  place.world_size = joined_->world_size;
  return place;
}

void Job::on_signal(int signal) {
  if (attempt_ && !attempt_->supervisor().all_gone()) {
    attempt_->supervisor().on_signal(signal);
  } else if (std::ranges::find(options_.ending_signals, signal) !=
             options_.ending_signals.end()) {
    last_words_cut_ = true;
    interrupt_ = signal;
  }
}

void Job::on_node_event(const NodeEvent& event) {
  if (event.joined) {
    joined_ = event.joined;
    return;
  }
  outcome_ = event.outcome;
  if (attempt_ && outcome_->kind != Outcome::Kind::done) {
    const int signal = outcome_->signal != 0 ? outcome_->signal : SIGTERM;
    attempt_->supervisor().stop_with_others(signal, outcome_->text);
  }
}

// The other nodes need to know of a failure at once, of success at the end.
void Job::tell_nodes() {
  if (!nodes_ || !attempt_ || told_nodes_ || outcome_) return;
  const Outcome outcome = attempt_->outcome();
  if (outcome.kind != Outcome::Kind::done) {
    nodes_->say_over(outcome);
  } else if (attempt_->supervisor().all_gone()) {
    nodes_->say_done();
  } else {
    return;
  }
  told_nodes_ = true;
}

void Job::wait_for_events(int longest_ms) {
  std::vector<pollfd> polls = relay_.polls();
  const size_t num_relay_polls = polls.size();
  polls.push_back({signals_.fd(), POLLIN, 0});
  if (nodes_) polls.push_back({nodes_->fd(), POLLIN, 0});
  int wait_ms =
      attempt_ ? attempt_->supervisor().milliseconds_to_next_deadline() : -1;
  if (nodes_) longest_ms = longest_ms < 0 ? 1000 : longest_ms;
  if (wait_ms < 0 || (longest_ms >= 0 && longest_ms < wait_ms)) {
    wait_ms = longest_ms;
  }
  if (::poll(polls.data(), polls.size(), wait_ms) > 0) {
    relay_.handle(std::span(polls).first(num_relay_polls));
  }
  while (const std::optional<int> signal = signals_.next()) {
    if (*signal != SIGCHLD) on_signal(*signal);  // reap looks in any case
  }
  if (attempt_) {
    attempt_->supervisor().reap();
    attempt_->supervisor().enforce_deadlines();
  }
  while (nodes_) {
    const std::optional<NodeEvent> event = nodes_->next();
    if (!event) break;
    on_node_event(*event);
  }
  tell_nodes();
}

// An error on the way leaves through ~Guard, which kills the ranks started.
void Job::run_attempt(const JobPlace& place) {
  told_nodes_ = false;
  attempt_.emplace(JobParts{options_, relay_, signals_, guard_, folder_},
                   place);
  attempt_->start();
  if (outcome_) on_node_event({.outcome = *outcome_});  // come meanwhile
  while (!attempt_->supervisor().all_gone()) wait_for_events(-1);
  tell_nodes();
  relay_.finish();
  attempt_->report();
  while (nodes_ && !outcome_ && interrupt_ == 0) wait_for_events(-1);
  if (!nodes_) outcome_ = attempt_->outcome();
}

bool Job::restarts() const {
  return interrupt_ == 0 && outcome_ && outcome_->may_restart() &&
         attempt_->supervisor().interrupt() == 0 &&
         attempt_->supervisor().num_running() == 0 &&
         (!outcome_->restart_counts() || num_restarts_ < options_.max_restarts);
}

void Job::prepare_restart() {
  ++round_;
  if (outcome_->restart_counts()) {
    ++num_restarts_;
    relay_.say(str("restarting all ranks (restart ", num_restarts_, " of ",
                   options_.max_restarts, ")."));
  } else {
    relay_.say(str(outcome_->text, ": restarting all ranks with it."));
  }
  outcome_.reset();
}

// The node that holds the store stays until the others can do without it; a
// signal ends that too.
void Job::leave_nodes() {
  constexpr int kLook_ms = 20;
  nodes_->leave();
  while (!nodes_->has_left() && !last_words_cut_) wait_for_events(kLook_ms);
}

int Job::finish() {
  if (interrupt_ != 0 && nodes_) {
    nodes_->say_over({Outcome::Kind::interrupted, 128 + interrupt_, interrupt_,
                      str("a launcher got ", signal_name(interrupt_))});
  }
  const bool failed = outcome_ && outcome_->kind != Outcome::Kind::done &&
                      outcome_->kind != Outcome::Kind::interrupted;
  if (nodes_ && failed) relay_.say(outcome_->text + ".");
  if (interrupt_ != 0 && nodes_) last_words_cut_ = false;
  while (relay_.pending() && !last_words_cut_) wait_for_events(-1);
  if (nodes_) leave_nodes();
  if (failed && options_.nodes) return outcome_->exit_code;
  if (interrupt_ != 0) return 128 + interrupt_;
  return attempt_ ? attempt_->supervisor().exit_code() : outcome_->exit_code;
}

int Job::run() {
  if (options_.logs.writes_files()) {
    relay_.say("the logs of the ranks are in " + folder_.path().string());
  }
  for (;;) {
    const std::optional<JobPlace> place =
        nodes_ ? meet_nodes() : common_place();
    if (!place) break;
    run_attempt(*place);
    if (!restarts()) break;
    prepare_restart();
  }
  return finish();
}

}  // namespace

int run_job(const JobOptions& options) {
  check(options);
  open_standard_files();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int exit_code = 0;
  bool hangs = false;
  {
    Job job(options);
    exit_code = job.run();
    hangs = job.hangs();
  }
  if (hangs) ::_exit(exit_code);
  return exit_code;
}

}  // namespace tessera::launch
