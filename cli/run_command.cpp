// `tessera run`: options and help; the work is in cli/launch.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/launch/job.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr const char* kDescription =
    "Starts N copies (ranks) of a program on this machine, so that they can "
    "train\n"
    "one model together, and looks after them until the last has ended.\n";

constexpr const char* kFooter = R"(
Example:
  tessera run -n 2 -- ./train --steps 100
starts ./train --steps 100 twice. Each copy finds in its environment which one it
is (RANK, LOCAL_RANK: 0 or 1), how many there are (WORLD_SIZE: 2), and where to
meet the others (MASTER_ADDR, MASTER_PORT). tessera::init_distributed() reads
these; so does any program that runs under torchrun.

When a rank fails, it is named, the others are stopped, and its exit code (128 +
signal if a signal killed it) is the exit code of tessera run. Ctrl-C and SIGTERM
are passed on to all ranks; Ctrl-C again kills them at once.

Use one rank per GPU. On a CPU, two or more ranks share the processors evenly,
unless OMP_NUM_THREADS is set.

Exit codes of its own: 2 wrong options, 125 ranks cannot be started, 126 command
cannot be executed, 127 command not found. More in docs/run.md.)";

class RunFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App*) const override {
    return kDescription;
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "\nUsage: tessera run -n N [options] -- command [arguments...]\n";
  }
};

launch::Environment own_environment() {
  launch::Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.emplace_back(*entry);
  }
  return environment;
}

// The words that no option took: a mistyped option, or a command without "--".
void refuse_extra_words(const std::vector<std::string>& words) {
  require(words.empty(), [&] {
    const std::string& word = words.front();
    if (word.starts_with('-')) return str("there is no option '", word, "'");
    return str("put -- before the command: tessera run -n N -- ", word, " ...");
  });
}

struct RunFlags {
  std::optional<int> num_ranks = {};
  double kill_after_s = 30;
  bool tag_output = false;
};

launch::JobOptions job_options(const RunFlags& flags,
                               const WordsAfterDashes& command) {
  require(flags.num_ranks.has_value(), [] {
    return str("give the number of ranks: tessera run -n N -- command");
  });
  constexpr double kLongest_s = 1e9;
  require(flags.kill_after_s >= 0 && flags.kill_after_s <= kLongest_s, [&] {
    return str("--kill-after is ", flags.kill_after_s,
               "; give seconds, from 0 to ", kLongest_s);
  });
  return {.num_ranks = *flags.num_ranks,
          .command = command,
          .environment = own_environment(),
          .output = flags.tag_output ? launch::OutputMode::tagged
                                     : launch::OutputMode::plain,
          .kill_after = std::chrono::milliseconds(
              static_cast<long long>(flags.kill_after_s * 1000))};
}

}  // namespace

std::function<int()> add_run_command(CLI::App& app,
                                     const WordsAfterDashes& words) {
  const auto flags = std::make_shared<RunFlags>();
  app.formatter(std::make_shared<RunFormatter>());
  app.footer(kFooter);
  app.add_option("-n,--nproc-per-node", flags->num_ranks,
                 "Number of ranks to start; must be given")
      ->type_name("N");
  app.add_flag("--tag-output", flags->tag_output,
               "Write [rank N] before each line that a rank writes");
  app.add_option("--kill-after", flags->kill_after_s,
                 "Seconds that ranks have to end before they are killed")
      ->capture_default_str()
      ->type_name("SECONDS");
  app.allow_extras();
  return [flags, words, &app] {
    refuse_extra_words(app.remaining());
    return launch::run_job(job_options(*flags, words));
  };
}

}  // namespace tessera::cli
