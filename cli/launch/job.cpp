#include "cli/launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <span>

#include "cli/launch/guard.h"
#include "cli/launch/launch_error.h"
#include "cli/launch/output_relay.h"
#include "cli/launch/processors.h"
#include "cli/launch/reserved_port.h"
#include "cli/launch/signal_queue.h"
#include "cli/launch/spawn.h"
#include "cli/launch/supervisor.h"

namespace tessera::launch {
namespace {

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

class Job {
 public:
  explicit Job(const JobOptions& options)
      : options_(options),
        supervisor_(options.kill_after, guard_,
                    [this](const std::string& text) { relay_.say(text); }) {}

  int run();

 private:
  JobPlace place();
  void start_ranks();
  void start_rank(int rank, SpawnOptions& spawn_options);
  void wait_for_events();

  const JobOptions& options_;
  OutputRelay relay_;
  SignalQueue signals_;
  Guard guard_;
  ReservedPort port_;  // held until the job is over
  Supervisor supervisor_;
  bool last_words_cut_ = false;
};

JobPlace Job::place() {
  JobPlace place;
  place.ranks_per_node = options_.num_ranks;
  place.master_port = port_.number();
  place.run_id = str("tessera-", ::getpid(), "-", port_.number());
  const int num_processors = num_usable_processors();
  place.num_threads = threads_per_rank(options_.environment, options_.num_ranks,
                                       num_processors);
  if (place.num_threads) {
    relay_.say(str("OMP_NUM_THREADS is not set: each rank computes with ",
                   *place.num_threads, " of ", num_processors, " processors."));
  }
  return place;
}

void Job::start_rank(int rank, SpawnOptions& spawn_options) {
  OutputRelay::WriteEnds ends;
  if (options_.output == OutputMode::tagged) {
    ends = relay_.add_rank(rank);
    spawn_options.output = ends.output.get();
    spawn_options.error = ends.error.get();
  }
  supervisor_.add_rank(spawn(spawn_options));
}

// Rank 0 reads what is piped in. A terminal is nobody's: a rank, alone in its
// session, could not be brought to the foreground.
void Job::start_ranks() {
  const FileDescriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const JobPlace job_place = place();
  SpawnOptions spawn_options{.command = options_.command,
                             .environment = {},
                             .guard = guard_.write_end(),
                             .signal_mask = signals_.mask_of_ranks()};
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const bool reads = rank == 0 && ::isatty(STDIN_FILENO) == 0;
    spawn_options.input = reads ? STDIN_FILENO : null.get();
    spawn_options.environment =
        rank_environment(options_.environment, job_place, rank);
    start_rank(rank, spawn_options);
  }
}

void Job::wait_for_events() {
  std::vector<pollfd> polls = relay_.polls();
  polls.push_back({signals_.fd(), POLLIN, 0});
  if (::poll(polls.data(), polls.size(),
             supervisor_.milliseconds_to_next_deadline()) > 0) {
    relay_.handle(std::span(polls).first(polls.size() - 1));
  }
  while (const std::optional<int> signal = signals_.next()) {
    if (*signal == SIGCHLD) continue;  // reap looks in any case
    if (supervisor_.all_gone()) {
      last_words_cut_ = true;
    } else {
      supervisor_.on_signal(*signal);
    }
  }
  supervisor_.reap();
  supervisor_.enforce_deadlines();
}

// An error on the way leaves through ~Guard, which kills the ranks started.
int Job::run() {
  start_ranks();
  while (!supervisor_.all_gone()) wait_for_events();
  relay_.finish();
  supervisor_.report();
  while (relay_.pending() && !last_words_cut_) wait_for_events();
  return supervisor_.exit_code();
}

}  // namespace

int run_job(const JobOptions& options) {
  check(options);
  open_standard_files();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  return Job(options).run();
}

}  // namespace tessera::launch
