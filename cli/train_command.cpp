// `tessera train`: options, signals and exit codes; the work is in
// tessera/train.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/train_program.h"
#include "cli/usage_formatter.h"
#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/train/failure.h"
#include "tessera/train/stop_signals.h"
#include "tessera/train/train.h"

namespace tessera::cli {
namespace {

using train::ExitCode;
using train::TrainConfig;

constexpr const char* kDescription =
    "Trains a language model on a token file, sharded over all ranks.\n";

constexpr const char* kFooter = R"(
Example:
  tessera prepare book.txt --validation 0.05 -o book.tok
  tessera run -n 2 -- tessera train train.toml --data.tokens=book.tok
  tessera generate run --prompt "Once upon a time"

CONFIG is a TOML file; --print-config shows every key with its default. Any key
can be set on the line too: --train.steps=500, --optimizer.lr=1e-3.

The run folder gets config.toml, checkpoints, metrics.jsonl, TensorBoard events,
loss.svg and the weights. SIGTERM, SIGUSR1, Ctrl-C and a closed terminal let the
step finish, save, and end with 0; --resume auto goes on, on any number of ranks.

Exit codes: 2 wrong options or config, 10 no token file, 11 a damaged one, 12 too
short for model.seq, 13 model.vocab too small, 14 a batch that does not divide,
20 a file cannot be written, 21 the loss was not finite, 23 a checkpoint that the
run cannot go on from, 24 out of memory, 70 and 71 another rank failed. More in
docs/train.md.)";

struct TrainFlags {
  std::string config;
  std::string resume = "never";
  bool deterministic = false;
  bool print_config = false;
};

TrainConfig read_config(const TrainFlags& flags,
                        std::vector<std::string> overrides) {
  if (flags.deterministic) overrides.push_back("train.deterministic=true");
  require(!flags.resume.empty(), [] {
    return str("--resume is empty; give auto, never, or a checkpoint.");
  });
  if (flags.config.empty() && flags.print_config) {
    return train::default_train_config(overrides);
  }
  require(!flags.config.empty(),
          [] { return str("give a config file: tessera train CONFIG.toml"); });
  return train::read_train_config(flags.config, overrides);
}

InitOptions init_options(const TrainConfig& config) {
  InitOptions options;
  if (config.distributed.timeout_seconds > 0) {
    options.timeout = std::chrono::milliseconds(
        static_cast<int64_t>(config.distributed.timeout_seconds * 1000));
  }
  options.transport = train::transport_of(config.distributed.transport);
  options.window_mib = config.distributed.window_mib;
  return options;
}

std::string what_is_left(const train::TrainOutcome& outcome,
                         const TrainConfig& config) {
  if (outcome.checkpoint.empty()) {
    return str("weights are in '", config.output.folder, "'.");
  }
  return str("saved in '", outcome.checkpoint,
             "'; --resume auto goes on from there.");
}

int report(const train::TrainOutcome& outcome, const TrainConfig& config,
           const World& world) {
  const bool nonfinite = outcome.ending == train::Ending::nonfinite;
  if (world.rank() == 0) {
    if (nonfinite) {
      std::cerr << "tessera train: the loss or the gradient of step "
                << outcome.steps
                << " is not finite; lower optimizer.lr, or go on past such "
                   "steps with train.nonfinite=\"skip\".\n";
    } else if (outcome.ending == train::Ending::stopped) {
      std::cerr << "tessera train: asked to end; stopped after step "
                << outcome.steps << ", " << what_is_left(outcome, config)
                << "\n";
    }
  }
  return static_cast<int>(nonfinite ? ExitCode::nonfinite_loss
                                    : ExitCode::done);
}

int run_training(const TrainFlags& flags,
                 const std::vector<std::string>& overrides) {
  train::StopSignals signals;
  TrainConfig config;
  const auto read = [&] { config = read_config(flags, overrides); };
  return run_on_world(
      "train", read, [&] { return init_options(config); },
      [&](const World& world) {
        signals.defer();
        const auto outcome = train::train(
            config, world,
            {.stop_requested = [&] { return signals.requested() != 0; },
             .resume = flags.resume});
        return report(outcome, config, world);
      });
}

}  // namespace

std::function<int()> add_train_command(CLI::App& app,
                                       const WordsAfterDashes& words) {
  const auto flags = std::make_shared<TrainFlags>();
  app.description(kDescription);
  app.formatter(std::make_shared<UsageFormatter>(
      "tessera train CONFIG.toml [options] [--TABLE.KEY=VALUE...]"));
  app.footer(kFooter);
  app.add_option("CONFIG", flags->config, "TOML file that describes the run");
  app.add_flag("--print-config", flags->print_config,
               "Print every key, explained, with the value that counts");
  app.add_flag("--deterministic", flags->deterministic,
               "Two runs give the same bits; the same as "
               "--train.deterministic=true");
  app.add_option("--resume", flags->resume,
                 "auto: go on from the newest checkpoint of the run folder, if "
                 "there is one; never: begin anew; or the path of one")
      ->capture_default_str()
      ->type_name("WHAT");
  app.allow_extras();
  return [flags, words, &app] {
    refuse_words_after_dashes("train", words);
    const auto overrides = app.remaining();
    if (flags->print_config) {
      std::cout << train::explain_keys(read_config(*flags, overrides).toml);
      return 0;
    }
    return run_training(*flags, overrides);
  };
}

}  // namespace tessera::cli
