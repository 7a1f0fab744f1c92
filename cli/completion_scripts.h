// Completion scripts for shells, from what a program's commands are. Pure.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// One command and all below it, as completion sees them.
struct CompletedCommand {
  struct Option {
    std::vector<std::string> names;  // with their dashes
    std::string help;                // one line
    bool takes_value = false;
    std::vector<std::string> choices;  // of the value; empty: anything, a file
  };

  std::string name;
  std::string help;
  std::vector<Option> options = {};
  std::vector<std::string> choices = {};  // of its first argument
  std::vector<CompletedCommand> commands = {};
};

[[nodiscard]] std::string bash_completion(const CompletedCommand& program);
[[nodiscard]] std::string zsh_completion(const CompletedCommand& program);
[[nodiscard]] std::string fish_completion(const CompletedCommand& program);

}  // namespace tessera::cli
