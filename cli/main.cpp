// The program `tessera`: finds the subcommand, and turns every error into one
// sentence and an exit code.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <iostream>
#include <map>

#include "cli/command.h"
#include "cli/launch/launch_error.h"
#include "tessera/base/error.h"
#include "tessera/base/nearest_name.h"
#include "tessera/train/failure.h"

namespace tessera::cli {
namespace {

using launch::kExitUsage;

constexpr std::array kCommands = {
    Command{"checkpoint", "Look at checkpoints, verify and convert them",
            add_checkpoint_command},
    Command{"completion", "Print the completion script of a shell",
            add_completion_command},
    Command{"doctor", "Look for what would keep a job from running here",
            add_doctor_command},
    Command{"eval", "Measure a trained model on a text", add_eval_command},
    Command{"flight", "Line up what the ranks of a failed job did last",
            add_flight_command},
    Command{"generate", "Continue a text by a trained model",
            add_generate_command},
    Command{"plan", "Say what memory and traffic a training run will need",
            add_plan_command},
    Command{"plot", "Draw what runs measured, one over the other",
            add_plot_command},
    Command{"prepare", "Turn text into a token file to train on",
            add_prepare_command},
    Command{"run", "Start the ranks of a job, on one machine or several",
            add_run_command},
    Command{"train", "Train a language model, sharded over all ranks",
            add_train_command},
    Command{"version", "Print versions, of Tessera and what it was built with",
            add_version_command},
};

constexpr const char* kFooter = R"(
Example: tessera run -n 2 -- ./train
Help on a subcommand: tessera run --help)";

struct CommandLine {
  std::vector<std::string> options;  // last first, as CLI11 wants them
  WordsAfterDashes words;
};

// CLI11 would take the words after "--" apart (lists, subcommand names).
CommandLine split_at_dashes(int argc, char** argv) {
  const std::vector<std::string> all(argv + 1, argv + argc);
  const auto dashes = std::ranges::find(all, "--");
  CommandLine line;
  line.options.assign(std::reverse_iterator(dashes), all.rend());
  if (dashes != all.end()) line.words.assign(dashes + 1, all.end());
  return line;
}

int fail(std::string_view command, const std::string& message, int exit_code) {
  std::cerr << "tessera" << (command.empty() ? "" : " ") << command << ": "
            << message << "\n";
  return exit_code;
}

std::string name_of_parsed(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? "" : parsed.front()->get_name();
}

int fail_usage(const CLI::App& app, const std::string& message) {
  const std::string command = name_of_parsed(app);
  return fail(
      command,
      message + (command.empty() ? "\nSee tessera --help."
                                 : "\nSee tessera " + command + " --help."),
      kExitUsage);
}

// `options` are last first.
void check_subcommand(const std::vector<std::string>& options) {
  std::string names;
  std::vector<std::string> each;
  for (const Command& command : kCommands) {
    names += (names.empty() ? "" : ", ") + std::string(command.name);
    each.emplace_back(command.name);
  }
  require(!options.empty(), [&] { return "give a subcommand: " + names; });
  const std::string& first = options.back();
  const bool known =
      std::ranges::find(kCommands, first, &Command::name) != kCommands.end();
  require(known || first.starts_with('-'), [&] {
    const std::string nearest = nearest_name(first, each);
    return str("there is no subcommand '", first, "'",
               nearest.empty() ? "" : "; did you mean '" + nearest + "'?",
               nearest.empty() ? "; there are: " : " There are: ", names);
  });
}

int run(int argc, char** argv) {
  CommandLine line = split_at_dashes(argc, argv);
  CLI::App app("Tessera: multi-GPU training in C++", "tessera");
  app.footer(kFooter);
  app.require_subcommand(1);
  std::map<std::string, std::function<int()>> actions;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(std::string(command.name),
                                       std::string(command.summary));
    actions[sub->get_name()] = command.add(*sub, line.words);
  }
  try {
    check_subcommand(line.options);
    app.parse(std::move(line.options));
    return actions.at(name_of_parsed(app))();
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail_usage(app, error.what());
  } catch (const InvalidArgument& error) {
    return fail_usage(app, error.what());
  } catch (const train::Failure& error) {
    return fail(name_of_parsed(app), error.what(),
                static_cast<int>(error.code()));
  } catch (const launch::LaunchError& error) {
    return fail(name_of_parsed(app), error.what(), error.exit_code());
  }
}

}  // namespace

void refuse_words_after_dashes(std::string_view command,
                               const WordsAfterDashes& words) {
  require(words.empty(), [&] {
    return str("'", command, "' takes nothing after --, but got '",
               words.front(), "'");
  });
}

}  // namespace tessera::cli

int main(int argc, char** argv) {
  try {
    return tessera::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "tessera: " << error.what() << "\n";
    return tessera::launch::kExitLauncher;
  }
}
