#include "cli/completion_scripts.h"

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

using Option = CompletedCommand::Option;
using Visit = std::function<void(const std::string& path,
                                 const CompletedCommand& command)>;

// Calls `visit` for a command and all below it; `path` is what is typed.
void for_all(const std::string& above, const CompletedCommand& command,
             const Visit& visit) {
  const std::string path = above + command.name;
  visit(path, command);
  for (const CompletedCommand& below : command.commands) {
    for_all(path + " ", below, visit);
  }
}

// In single quotes, as all three shells read them but fish, which knows \'.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += "'\"'\"'";
    } else {
      result += c;
    }
  }
  return result + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> words_of(const CompletedCommand& command) {
  std::vector<std::string> words = command.choices;
  for (const CompletedCommand& below : command.commands) {
    words.push_back(below.name);
  }
  return words;
}

std::vector<std::string> option_names(const CompletedCommand& command) {
  std::vector<std::string> names;
  for (const Option& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// The branches of a `case` that bash and zsh share. The names path, words and
// options would be zsh's own.
struct Branches {
  std::string commands;  // 'tessera run') typed=...
  std::string values;    // 'tessera run --tee') what may follow an option
  std::string words;     // 'tessera run') what may follow the command
};

void add_value_branches(const std::string& path, const Option& option,
                        Branches& branches) {
  if (!option.takes_value) return;
  for (const std::string& name : option.names) {
    branches.values +=
        str("    ", quoted(path + " " + name), ") values=",
            option.choices.empty() ? "files" : quoted(joined(option.choices)),
            " ;;\n");
  }
}

Branches branches_of(const CompletedCommand& program) {
  Branches branches;
  for_all("", program,
          [&](const std::string& path, const CompletedCommand& command) {
            branches.commands +=
                str("      ", quoted(path), ") typed=\"$typed $word\" ;;\n");
            for (const Option& option : command.options) {
              add_value_branches(path, option, branches);
            }
            branches.words += str(
                "    ", quoted(path),
                ")\n      flags=", quoted(joined(option_names(command))),
                "\n      list=", quoted(joined(words_of(command))), " ;;\n");
          });
  return branches;
}

}  // namespace

// After "--" stands another program's command line, which is completed as such.
std::string bash_completion(const CompletedCommand& program) {
  const Branches branches = branches_of(program);
  const std::string function = "_" + program.name;
  return str("# bash completion for ", program.name, "\n", function, R"(() {
  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
  local typed=)",
             quoted(program.name), R"( word i values= flags= list=
  if [ "$current" = = ]; then current=
  elif [ "$before" = = ]; then before="${COMP_WORDS[COMP_CWORD-2]}"; fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word="${COMP_WORDS[i]}"
    if [ "$word" = -- ]; then
      if declare -F _command_offset > /dev/null; then _command_offset $((i + 1))
      elif ((COMP_CWORD == i + 1)); then COMPREPLY=($(compgen -c -- "$current"))
      else COMPREPLY=($(compgen -f -- "$current")); fi
      return
    fi
    case "$typed $word" in
)",
             branches.commands, R"(    esac
  done
  case "$typed $before" in
)",
             branches.values, R"(  esac
  if [ "$values" = files ]; then COMPREPLY=($(compgen -f -- "$current")); return; fi
  if [ -n "$values" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$current")); return
  fi
  case "$typed" in
)",
             branches.words, R"(  esac
  if [ -n "$list" ] && [ "${current#-}" = "$current" ]; then
    COMPREPLY=($(compgen -W "$list" -- "$current"))
  elif [ "${current#-}" != "$current" ] || [ -z "$current" ]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames )",
             "-F ", function, " ", program.name, "\n");
}

std::string zsh_completion(const CompletedCommand& program) {
  const Branches branches = branches_of(program);
  const std::string function = "_" + program.name;
  return str("#compdef ", program.name, "\n", function, R"(() {
  local before="${words[CURRENT-1]}" word values= flags= list=
  local typed=)",
             quoted(program.name), R"(
  integer i
  for ((i = 2; i < CURRENT; ++i)); do
    word="${words[i]}"
    if [[ "$word" = -- ]]; then
      shift $i words; ((CURRENT -= i)); _normal; return
    fi
    case "$typed $word" in
)",
             branches.commands, R"(    esac
  done
  case "$typed $before" in
)",
             branches.values, R"(  esac
  if [[ "$values" = files ]]; then _files; return; fi
  if [[ -n "$values" ]]; then compadd -- ${=values}; return; fi
  case "$typed" in
)",
             branches.words, R"(  esac
  if [[ "$PREFIX" = -* || -z "$list" ]]; then compadd -- ${=flags}; fi
  if [[ -n "$list" ]]; then compadd -- ${=list}; else _files; fi
}
if [ "$funcstack[1]" = ")",
             function, "\" ]; then ", function, "; else compdef ", function,
             " ", program.name, "; fi\n");
}

std::string fish_completion(const CompletedCommand& program) {
  std::string script = str("# fish completion for ", program.name, "\n");
  for_all("", program,
          [&](const std::string& path, const CompletedCommand& command) {
            std::string condition = "not contains -- -- (commandline -opc)";
            size_t space = path.find(' ');
            while (space != std::string::npos) {
              const size_t next = path.find(' ', space + 1);
              condition += "; and __fish_seen_subcommand_from " +
                           path.substr(space + 1, next - space - 1);
              space = next;
            }
            for (const CompletedCommand& below : command.commands) {
              condition +=
                  "; and not __fish_seen_subcommand_from " + below.name;
            }
            const std::string begin =
                str("complete -c ", program.name, " -n ", quoted(condition));
            for (const CompletedCommand& below : command.commands) {
              script += str(begin, " -f -a ", quoted(below.name), " -d ",
                            quoted(below.help), "\n");
            }
            if (!command.choices.empty()) {
              script +=
                  str(begin, " -f -a ", quoted(joined(command.choices)), "\n");
            }
            for (const Option& option : command.options) {
              script += begin;
              for (const std::string& name : option.names) {
                const bool is_long = name.starts_with("--");
                script +=
                    (is_long ? " -l " : " -s ") + name.substr(is_long ? 2 : 1);
              }
              if (option.takes_value) script += " -r";
              if (!option.choices.empty()) {
                script += " -f -a " + quoted(joined(option.choices));
              }
              script += " -d " + quoted(option.help) + "\n";
            }
          });
  return script;
}

}  // namespace tessera::cli
