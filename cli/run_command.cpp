// `tessera run`: options and help; the work is in cli/launch.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/launch/job.h"
#include "cli/run_options.h"
#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

constexpr const char* kDescription =
    "Starts N copies (ranks) of a program, on this machine or on several, so "
    "that\n"
    "they can train one model together, and looks after them until the last "
    "has\nended. Takes the options of torchrun.\n";

constexpr const char* kFooter = R"(
Examples:
  tessera run -n 2 -- ./train --steps 100
starts ./train --steps 100 twice. Each copy finds in its environment which one it
is (RANK, LOCAL_RANK: 0 or 1), how many there are (WORLD_SIZE: 2), and where to
meet the others (MASTER_ADDR, MASTER_PORT). tessera::init_distributed() reads
these; so does any program that runs under torchrun.

  tessera run -n 8 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint node-0:29400 \
      -- ./train
on two machines, one of them called node-0, starts 16 ranks in all.

When a rank fails, it is named, the others are stopped (and with --max-restarts
started anew), and its exit code (128 + signal if a signal killed it) is the exit
code of tessera run. Ctrl-C and SIGTERM are passed on to all ranks; Ctrl-C again
kills them at once.

Use one rank per GPU. On a CPU, two or more ranks share the processors evenly,
unless OMP_NUM_THREADS is set.

Each option can be set by a variable too: PET_ and its name, PET_NPROC_PER_NODE=2.

Exit codes of its own: 2 wrong options, 121 port taken, 122 the nodes did not
meet, 123 a node was lost, 124 more ranks than limits allow, 125 ranks cannot be
started, 126 command cannot be executed, 127 command not found. More in
docs/run.md.)";

class RunFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App*) const override {
    return kDescription;
  }
  std::string make_usage(const CLI::App*, std::string) const override {
    return "\nUsage: tessera run -n N [options] -- command [arguments...]\n";
  }
  // Without the second spelling, with underscores.
  std::string make_option_name(const CLI::Option* option, bool) const override {
    const auto& shorts = option->get_snames();
    const auto& longs = option->get_lnames();
    std::string name = shorts.empty() ? "" : "-" + shorts[0];
    if (!longs.empty()) name += (name.empty() ? "--" : ",--") + longs[0];
    return name;
  }
  // The variables of all are named in the footer.
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    const std::string usual = option->get_default_str();
    return (type.empty() ? "" : " " + type) +
           (usual.empty() ? "" : " [" + usual + "]");
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

// Adds options under one heading of the help, each with its PET_ variable and,
// as torchrun has it, a second spelling with underscores.
class OptionGroup {
 public:
  OptionGroup(CLI::App& app, std::string heading)
      : app_(app), heading_(std::move(heading)) {}

  template <class T>
  OptionGroup& option(const std::string& name, T& value,
                      const std::string& type, const std::string& text) {
    finish(app_.add_option(spellings(name), value, text), name)
        ->type_name(type);
    return *this;
  }
  // Shows the value that counts when none is given.
  template <class T>
  OptionGroup& option_with_default(const std::string& name, T& value,
                                   const std::string& type,
                                   const std::string& text) {
    finish(app_.add_option(spellings(name), value, text), name)
        ->type_name(type)
        ->capture_default_str();
    return *this;
  }
  OptionGroup& flag(const std::string& name, bool& value,
                    const std::string& text) {
    finish(app_.add_flag(spellings(name), value, text), name);
    return *this;
  }

 private:
  static std::string long_name(const std::string& name) {
    return name.substr(name.find("--") + 2);
  }
  static std::string spellings(const std::string& name) {
    std::string other = long_name(name);
    std::ranges::replace(other, '-', '_');
    return other == long_name(name) ? name : name + ",--" + other;
  }
  CLI::Option* finish(CLI::Option* option, const std::string& name) {
    std::string variable = "PET_" + long_name(name);
    std::ranges::transform(variable, variable.begin(), [](unsigned char c) {
      return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    return option->envname(variable)->group(heading_);
  }

  CLI::App& app_;
  std::string heading_;
};

void add_rank_options(CLI::App& app, RunFlags& flags) {
  OptionGroup(app, "Ranks")
      .option("-n,--nproc-per-node", flags.ranks_per_node, "N",
              "Ranks on this machine: a number, or gpu (one for each GPU), cpu "
              "(one for each processor), auto (gpu if there is one); 1 if not "
              "given")
      .option_with_default("--role", flags.role, "NAME",
                           "ROLE_NAME of the ranks")
      .flag("--virtual-local-rank", flags.own_device,
            "Each rank sees one GPU alone, as device 0")
      .flag("--no-python", flags.no_python,
            "Does nothing: the command is a program, never a Python script");
}

void add_node_options(CLI::App& app, RunFlags& flags) {
  OptionGroup(app, "Several machines (nodes); start the same on each")
      .option_with_default("--nnodes", flags.num_nodes, "N",
                           "How many nodes; c10d: MIN:MAX for a job that may "
                           "grow and shrink")
      .option_with_default("--rdzv-backend", flags.rendezvous_backend,
                           "static|c10d",
                           "static: each node is told its --node-rank; c10d: "
                           "nodes are numbered as they come")
      .option("--rdzv-endpoint", flags.rendezvous_endpoint, "HOST:PORT",
              "Where the nodes meet: at one of them, the same on all "
              "(port 29400 for c10d, 29500 for static)")
      .option("--rdzv-id", flags.rendezvous_id, "NAME",
              "Name of the job, the same on all nodes")
      .option("--rdzv-conf", flags.rendezvous_settings, "KEY=VALUE,...",
              "join_timeout (600 s), last_call_timeout (30 s), "
              "keep_alive_interval (5 s), keep_alive_max_attempt (3), is_host "
              "(0 or 1)")
      .option("--node-rank", flags.node_rank, "N", "This node, from 0")
      .option("--master-addr", flags.master_address, "HOST",
              "static: the address of node 0")
      .option("--master-port", flags.master_port, "PORT",
              "static: a free port of node 0; on one machine: the port of rank "
              "0, any that is free if not given")
      .option("--local-addr", flags.local_address, "HOST",
              "This node, as --rdzv-endpoint calls it, where it cannot know")
      .flag("--standalone", flags.standalone,
            "One machine, whatever the options of this section say");
}

void add_failure_options(CLI::App& app, RunFlags& flags) {
  OptionGroup(app, "Failures")
      .option_with_default("--max-restarts", flags.max_restarts, "N",
                           "How often all ranks start anew when one fails")
      .option_with_default("--kill-after", flags.kill_after_s, "SECONDS",
                           "Time that ranks have to end before they are killed")
      .option_with_default("--signals-to-handle", flags.signals, "LIST",
                           "Signals that are passed on and end the job")
      .option_with_default("--monitor-interval", flags.monitor_interval_s,
                           "SECONDS",
                           "How often to look for news of the other nodes");
}

void add_output_options(CLI::App& app, RunFlags& flags) {
  OptionGroup(app, "Output")
      .flag("--tag-output", flags.tag_output,
            "Write [rank N] before each line that a rank writes")
      .option("--log-dir", flags.log_folder, "DIR",
              "Folder for log files; a temporary one if not given")
      .option_with_default(
          "-r,--redirects", flags.redirects, "WHAT",
          "Write to files instead: 1 stdout, 2 stderr, 3 both; "
          "or by local rank, 0:3,1:2")
      .option_with_default("-t,--tee", flags.tee, "WHAT",
                           "Write to files and, tagged, to the terminal")
      .option("--local-ranks-filter", flags.shown_ranks, "LIST",
              "Only these local ranks may write to the terminal: 0,2");
}

}  // namespace

std::function<int()> add_run_command(CLI::App& app,
                                     const WordsAfterDashes& words) {
  const auto flags = std::make_shared<RunFlags>();
  app.formatter(std::make_shared<RunFormatter>());
  app.footer(kFooter);
  add_rank_options(app, *flags);
  add_node_options(app, *flags);
  add_output_options(app, *flags);
  add_failure_options(app, *flags);
  app.allow_extras();
  return [flags, words, &app] {
    refuse_extra_words(app.remaining());
    return launch::run_job(job_options(*flags, words, own_environment()));
  };
}

}  // namespace tessera::cli
