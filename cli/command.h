// The subcommands of `tessera`, one line each in main.cpp's table.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

/// What stands after the first "--" of the command line, untouched. None when
/// there was no "--".
using WordsAfterDashes = std::vector<std::string>;

struct Command {
  std::string_view name;
  std::string_view summary;  // for the list of subcommands
  // Adds the options to `app`. Returns what runs the command once they have
  // been read, and gives the program's exit code.
  std::function<int()> (*add)(CLI::App& app, const WordsAfterDashes& words);
};

[[nodiscard]] std::function<int()> add_doctor_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_eval_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_flight_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_generate_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_plan_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_plot_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_prepare_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_checkpoint_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_run_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_completion_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_train_command(
    CLI::App& app, const WordsAfterDashes& words);
[[nodiscard]] std::function<int()> add_version_command(
    CLI::App& app, const WordsAfterDashes& words);

/// Refuses words after "--", for the commands that take none.
void refuse_words_after_dashes(std::string_view command,
                               const WordsAfterDashes& words);

}  // namespace tessera::cli
