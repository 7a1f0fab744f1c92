// `tessera plan`: options and help; the work is in tessera/train/plan.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "cli/command.h"
#include "cli/plan_config.h"
#include "tessera/base/error.h"
#include "tessera/train/plan.h"

namespace tessera::cli {
namespace {

using train::Kernels;

constexpr const char* kFooter = R"(
Examples:
  tessera plan --preset 8b --ranks 8
  tessera plan --preset 1b --ranks 2 --batch 2 --seq 4096 --json
  tessera plan --preset 8b --ranks 8 --kernels fused --recompute block
  tessera plan --preset 70b --ranks 64 --replicas 8 --prefetch 1
  tessera plan train.toml --ranks 4 --model.layers=24

A config is one of tessera train: it says model, batch, tokens a step and layout,
each of which --table.key=value overrides.

Bytes of shards and gathered parameters are exact, padding included; activations
are what autograd keeps of each operator. Needs no GPU. More in docs/plan.md.)";

using Names = std::vector<std::string>;

/// An option of --preset that stands for a key of a config.
struct KeyOption {
  const char* option;
  const char* key;
  std::string value;
  Names names;  // that it takes; empty: what the key takes
  const char* help;
};

struct PlanFlags {
  std::string config;
  std::string preset;
  int64_t batch = 0;  // 0: the preset's
  std::vector<KeyOption> keys = {
      {"--param-dtype",
       "shard.param_dtype",
       "bfloat16",
       {"bfloat16", "float32"},
       "Dtype of full parameters and of the compute"},
      {"--reduce-dtype",
       "shard.reduce_dtype",
       "float32",
       {"bfloat16", "float32"},
       "Dtype in which gradients are summed"},
      {"--gather-dtype",
       "shard.gather_dtype",
       "param_dtype",
       {"float8", "param_dtype"},
       "What travels in gathers of matrices"},
      {"--replicas",
       "shard.replicas",
       "1",
       {},
       "Copies of the sharded model (HSDP)"},
      {"--reshard",
       "shard.reshard",
       "auto",
       {},
       "Full parameters after forward: auto, always, never, or by how many "
       "ranks they are kept"},
      {"--backward-overlap",
       "shard.backward_overlap",
       "full",
       {"full", "tight"},
       "As shard.backward_overlap of a config"},
      {"--prefetch",
       "shard.prefetch",
       "auto",
       {},
       "Units whose gathers are started ahead of their use; auto: 1 on a GPU"},
      {"--gather-copy",
       "shard.gather_copy",
       "none",
       {"kept", "none"},
       "Shards in the param_dtype, too, for gathers"},
      {"--window-mib",
       "distributed.window_mib",
       "auto",
       {},
       "As distributed.window_mib of a config"},
      {"--transport",
       "distributed.transport",
       "nccl",
       {"copy_engines", "nccl"},
       "Of gathers and reduce-scatters between the GPUs of a machine"},
      {"--offload",
       "shard.offload",
       "off",
       {"off", "pageable", "pinned"},
       "Shards, gradients and optimizer in host memory"},
      {"--kernels",
       "model.kernels",
       "plain",
       {"fused", "plain"},
       "As model.kernels of a config"},
      {"--recompute",
       "model.recompute",
       "none",
       {"block", "but_attention", "none", "offload", "selective"},
       "As model.recompute of a config"},
      {"--selective-last",
       "model.selective_last",
       "0",
       {},
       "As model.selective_last of a config"},
      {"--offload-blocks",
       "model.offload_blocks",
       "0",
       {},
       "As model.offload_blocks of a config"},
      {"--dropout", "model.dropout", "0", {}, "As model.dropout of a config"}};
  std::string device = "cuda";
  bool json = false;
  train::PlanOptions options;
};

const std::map<std::string, Kernels> kDevices = {{"cuda", Kernels::cuda},
                                                 {"cpu", Kernels::cpu}};

train::PlanOptions preset_options(const PlanFlags& flags) {
  train::PlanOptions options = flags.options;
  std::vector<std::string> overrides = {"model.preset=" + flags.preset};
  for (const KeyOption& each : flags.keys) {
    overrides.push_back(str(each.key, "=", each.value));
  }
  read_plan_keys(overrides, options);
  if (flags.batch > 0) options.batch = flags.batch;
  return options;
}

/// words: what no option took; overrides of the config.
train::PlanOptions plan_options(const PlanFlags& flags,
                                const std::vector<std::string>& words) {
  require(flags.preset.empty() != flags.config.empty(), [] {
    return str("give a model: a config of tessera train, or --preset NAME.");
  });
  if (!flags.preset.empty()) {
    require(words.empty(),
            [&] { return str("there is no option '", words.front(), "'"); });
    return preset_options(flags);
  }
  for (const std::string& word : words) {
    require(word.find('.') != word.npos && word.find('=') != word.npos,
            [&] { return str("there is no option '", word, "'"); });
  }
  train::PlanOptions options = flags.options;
  read_plan_config(flags.config, words, options);
  if (flags.batch > 0) options.batch = flags.batch;
  return options;
}

/// What a config says by keys of its own is not overridden by these.
void refuse_preset_options(const CLI::App& app, const PlanFlags& flags) {
  if (flags.config.empty()) return;
  const auto refuse = [&](const char* option, const char* key) {
    require<InvalidArgument>(app.get_option(option)->count() == 0, [&] {
      return str("plan: ", option, " is for --preset; with a config give --",
                 key, "=VALUE.");
    });
  };
  for (const KeyOption& each : flags.keys) refuse(each.option, each.key);
  refuse("--micro-batches", "train.tokens_per_step");
}

int run_plan(const PlanFlags& flags, const std::vector<std::string>& words) {
  train::PlanOptions options = plan_options(flags, words);
  options.kernels = kDevices.at(flags.device);
  const train::Plan plan = train::plan_training(options);
  std::cout << (flags.json ? train::plan_json(options, plan)
                           : train::plan_text(options, plan));
  return 0;
}

void add_key_options(CLI::App& app, PlanFlags& flags) {
  for (KeyOption& each : flags.keys) {
    CLI::Option* option = app.add_option(each.option, each.value, each.help)
                              ->capture_default_str();
    if (!each.names.empty()) option->check(CLI::IsMember(each.names));
  }
  app.add_option("--device", flags.device, "Whose kernels keep activations")
      ->check(CLI::IsMember(kDevices))
      ->capture_default_str();
}

}  // namespace

std::function<int()> add_plan_command(CLI::App& app,
                                      const WordsAfterDashes& words) {
  const auto flags = std::make_shared<PlanFlags>();
  train::PlanOptions& options = flags->options;
  app.footer(kFooter);
  app.add_option("config", flags->config, "Config of tessera train, in TOML")
      ->type_name("CONFIG");
  app.add_option("--preset", flags->preset,
                 "Model: 1m, tiny, 10m, 124m, 350m, 1b, 3b, 8b, 70b, "
                 "gpt2-124m, gpt2-355m, gpt2-774m, gpt2-1.5b")
      ->type_name("NAME");
  app.add_option("--ranks", options.ranks, "Number of ranks")
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--batch", flags->batch,
                 "Sequences of one forward of one rank; 0: the preset's")
      ->type_name("N");
  app.add_option("--seq", options.seq,
                 "Tokens of a sequence; 0: the model's longest")
      ->type_name("N");
  app.add_option("--micro-batches", options.micro_batches,
                 "Forwards and backwards of one step")
      ->type_name("N")
      ->capture_default_str();
  add_key_options(app, *flags);
  app.add_flag("--json", flags->json, "For programs: JSON");
  app.allow_extras();
  return [flags, words, &app] {
    refuse_words_after_dashes("plan", words);
    refuse_preset_options(app, *flags);
    return run_plan(*flags, app.remaining());
  };
}

}  // namespace tessera::cli
