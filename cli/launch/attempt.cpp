#include "cli/launch/attempt.h"

#include <fcntl.h>
#include <unistd.h>

#include "cli/launch/exit_status.h"
#include "cli/launch/spawn.h"

namespace tessera::launch {

Attempt::Attempt(const JobParts& parts, const JobPlace& place)
    : parts_(parts),
      place_(place),
      output_(parts.options.logs, parts.folder, parts.relay, place.first_rank),
      supervisor_({.kill_after = parts.options.kill_after,
                   .first_rank = place.first_rank,
                   .time_of_error = [&parts = parts_](int local_rank)
                       -> std::optional<std::filesystem::file_time_type> {
                     const auto error =
                         read_error_file(parts.folder.error_file(local_rank));
                     if (!error) return std::nullopt;
                     return error->time;
                   }},
                  parts.guard, [&parts = parts_](const std::string& text) {
                    parts.relay.say(text);
                  }) {}

void Attempt::start_rank(int local_rank, int input) {
  const FileDescriptor output = output_.open(local_rank, Stream::output);
  const FileDescriptor error = output_.open(local_rank, Stream::error);
  supervisor_.add_rank(
      spawn({.command = parts_.options.command,
             .environment = rank_environment(
                 parts_.options.environment, place_, local_rank,
                 parts_.folder.error_file(local_rank).string()),
             .input = input,
             .output = output.open() ? output.get() : STDOUT_FILENO,
             .error = error.open() ? error.get() : STDERR_FILENO,
             .guard = parts_.guard.write_end(),
             .signal_mask = parts_.signals.mask_of_ranks()}));
}

// Rank 0 reads what is piped in. A terminal is nobody's: a rank, alone in its
// session, could not be brought to the foreground.
void Attempt::start() {
  const FileDescriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  parts_.relay.forget_ranks();
  parts_.folder.begin_attempt(place_.restart_count, place_.ranks_per_node);
  for (int rank = 0; rank < place_.ranks_per_node; ++rank) {
    const bool reads =
        place_.first_rank + rank == 0 && ::isatty(STDIN_FILENO) == 0;
    start_rank(rank, reads ? STDIN_FILENO : null.get());
  }
}

Outcome Attempt::outcome() const {
  Outcome outcome;
  const std::string place =
      place_.num_nodes > 1 ? str(" on node ", place_.node_rank) : "";
  if (const int signal = supervisor_.interrupt(); signal != 0) {
    return {Outcome::Kind::interrupted, 128 + signal, signal,
            str("the launcher", place, " got ", signal_name(signal))};
  }
  if (const auto rank = supervisor_.culprit()) {
    return {Outcome::Kind::failed, supervisor_.exit_code(), 0,
            supervisor_.describe(*rank) + place};
  }
  return outcome;
}

void Attempt::report() const {
  supervisor_.report();
  const auto rank = supervisor_.culprit();
  if (!rank) return;
  const std::string name = str("rank ", place_.first_rank + *rank);
  if (const auto error = read_error_file(parts_.folder.error_file(*rank))) {
    parts_.relay.say(name + " wrote down this error:");
    parts_.relay.quote(error->message);
  }
  if (const std::string words = output_.last_words(*rank); !words.empty()) {
    parts_.relay.say(str("the last lines of ", name, ":"));
    parts_.relay.quote(words);
  }
}

}  // namespace tessera::launch
