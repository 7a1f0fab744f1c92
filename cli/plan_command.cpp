// `tessera plan`: options and help; the work is in tessera/train/plan.
#include <CLI/CLI.hpp>
#include <array>
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
using train::PlanReshard;

constexpr const char* kFooter = R"(
Examples:
  tessera plan --preset 8b --ranks 8
  tessera plan --preset 1b --ranks 2 --batch 2 --seq 4096 --json
  tessera plan --preset 8b --ranks 8 --kernels fused --recompute block
  tessera plan train.toml --ranks 4 --model.layers=24

A config is one of tessera train: it says model, batch, tokens a step, dtypes and
resharding, each of which --table.key=value overrides.

Bytes of shards and gathered parameters are exact, padding included; activations
are what autograd keeps of each operator. Needs no GPU. More in docs/plan.md.)";

struct PlanFlags {
  std::string config;
  std::string preset;
  int64_t batch = 0;  // 0: the preset's
  std::string compute = "bfloat16";
  std::string reduce = "float32";
  std::string reshard = "auto";
  std::string kernels = "plain";
  std::string recompute = "none";
  double dropout = 0;
  std::string device = "cuda";
  bool json = false;
  train::PlanOptions options;
};

const std::map<std::string, int64_t> kDtypes = {{"float32", 4},
                                                {"bfloat16", 2}};
const std::map<std::string, PlanReshard> kReshards = {
    {"auto", PlanReshard::automatic},
    {"always", PlanReshard::always},
    {"never", PlanReshard::never}};
const std::map<std::string, train::ModelKernels> kModelKernels = {
    {"plain", train::ModelKernels::plain},
    {"fused", train::ModelKernels::fused}};
const std::map<std::string, train::RecomputePolicy> kRecomputes = {
    {"none", train::RecomputePolicy::none},
    {"selective", train::RecomputePolicy::selective},
    {"block", train::RecomputePolicy::block}};
const std::map<std::string, Kernels> kDevices = {{"cuda", Kernels::cuda},
                                                 {"cpu", Kernels::cpu}};

train::PlanOptions preset_options(const PlanFlags& flags) {
  train::PlanOptions options = flags.options;
  const train::ModelPreset& preset = train::model_preset(flags.preset);
  options.model = preset.model;
  options.model.kernels = kModelKernels.at(flags.kernels);
  options.model.recompute = kRecomputes.at(flags.recompute);
  options.model.dropout = flags.dropout;
  options.batch = flags.batch > 0 ? flags.batch : preset.batch;
  options.compute_bytes = kDtypes.at(flags.compute);
  options.reduce_bytes = kDtypes.at(flags.reduce);
  options.reshard = kReshards.at(flags.reshard);
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
  constexpr std::array kKeys = {
      std::pair("--param-dtype", "shard.param_dtype"),
      std::pair("--reduce-dtype", "shard.reduce_dtype"),
      std::pair("--reshard", "shard.reshard"),
      std::pair("--kernels", "model.kernels"),
      std::pair("--recompute", "model.recompute"),
      std::pair("--dropout", "model.dropout"),
      std::pair("--micro-batches", "train.tokens_per_step")};
  for (const auto& [option, key] : kKeys) {
    require<InvalidArgument>(app.get_option(option)->count() == 0, [&] {
      return str("plan: ", option, " is for --preset; with a config give --",
                 key, "=VALUE.");
    });
  }
}

int run_plan(const PlanFlags& flags, const std::vector<std::string>& words) {
  train::PlanOptions options = plan_options(flags, words);
  options.kernels = kDevices.at(flags.device);
  const train::Plan plan = train::plan_training(options);
  std::cout << (flags.json ? train::plan_json(options, plan)
                           : train::plan_text(options, plan));
  return 0;
}

void add_choices(CLI::App& app, PlanFlags& flags) {
  app.add_option("--param-dtype", flags.compute,
                 "Dtype of full parameters and of the compute")
      ->check(CLI::IsMember(kDtypes))
      ->capture_default_str();
  app.add_option("--reduce-dtype", flags.reduce,
                 "Dtype in which gradients are summed")
      ->check(CLI::IsMember(kDtypes))
      ->capture_default_str();
  app.add_option("--reshard", flags.reshard,
                 "Whether full parameters are freed after the forward")
      ->check(CLI::IsMember(kReshards))
      ->capture_default_str();
  app.add_option("--kernels", flags.kernels, "As model.kernels of a config")
      ->check(CLI::IsMember(kModelKernels))
      ->capture_default_str();
  app.add_option("--recompute", flags.recompute,
                 "As model.recompute of a config")
      ->check(CLI::IsMember(kRecomputes))
      ->capture_default_str();
  app.add_option("--dropout", flags.dropout, "As model.dropout of a config")
      ->type_name("P")
      ->capture_default_str();
  app.add_option("--prefetch", flags.options.prefetch,
                 "Units whose gathers are started ahead of their use")
      ->type_name("N")
      ->capture_default_str();
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
  add_choices(app, *flags);
  app.add_flag("--json", flags->json, "For programs: JSON");
  app.allow_extras();
  return [flags, words, &app] {
    refuse_words_after_dashes("plan", words);
    refuse_preset_options(app, *flags);
    return run_plan(*flags, app.remaining());
  };
}

}  // namespace tessera::cli
