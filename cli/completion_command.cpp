// `tessera completion`: reads the program's own options, so that the scripts
// know exactly what it knows.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "cli/completion_scripts.h"

namespace tessera::cli {
namespace {

constexpr const char* kFooter = R"(
To have it in every new shell:
  bash   echo 'source <(tessera completion bash)' >> ~/.bashrc
  zsh    echo 'source <(tessera completion zsh)' >> ~/.zshrc  (after compinit)
  fish   tessera completion fish > ~/.config/fish/completions/tessera.fish)";

// Choices stand in a type's name, as a|b or, by CLI11's IsMember, TEXT:{a,b}.
std::vector<std::string> choices_in(std::string type) {
  const size_t brace = type.find('{');
  const char separator = brace == std::string::npos ? '|' : ',';
  if (brace != std::string::npos) {
    type = type.substr(brace + 1, type.find('}', brace) - brace - 1);
  }
  if (type.find(separator) == std::string::npos) return {};
  std::istringstream words(type);
  std::vector<std::string> choices;
  for (std::string word; std::getline(words, word, separator);) {
    choices.push_back(word);
  }
  return choices;
}

std::string one_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

CompletedCommand::Option completed(const CLI::Option& option) {
  CompletedCommand::Option result;
  for (const std::string& name : option.get_snames()) {
    result.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    if (name.find('_') == std::string::npos)
      result.names.push_back("--" + name);
  }
  result.help = one_line(option.get_description());
  result.takes_value = option.get_expected_max() > 0;
  if (result.takes_value) result.choices = choices_in(option.get_type_name());
  return result;
}

CompletedCommand completed(const CLI::App& app) {
  CompletedCommand result{.name = app.get_name(),
                          .help = one_line(app.get_description())};
  for (const CLI::Option* option : app.get_options()) {
    if (option->nonpositional()) {
      result.options.push_back(completed(*option));
    } else if (result.choices.empty()) {
      result.choices = choices_in(option->get_type_name());
    }
  }
  for (const CLI::App* below : app.get_subcommands(nullptr)) {
    result.commands.push_back(completed(*below));
  }
  return result;
}

}  // namespace

std::function<int()> add_completion_command(CLI::App& app,
                                            const WordsAfterDashes& words) {
  app.footer(kFooter);
  const auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell, words, &app] {
    refuse_words_after_dashes("completion", words);
    const CompletedCommand program = completed(*app.get_parent());
    std::cout << (*shell == "bash"  ? bash_completion(program)
                  : *shell == "zsh" ? zsh_completion(program)
                                    : fish_completion(program));
    return 0;
  };
}

}  // namespace tessera::cli
