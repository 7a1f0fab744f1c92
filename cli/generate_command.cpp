// `tessera generate`: text from the weights of a run.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/train_program.h"
#include "cli/usage_formatter.h"
#include "tessera/base/error.h"
#include "tessera/shard/full_parameters.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/generate.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/text_codec.h"

namespace tessera::cli {
namespace {

constexpr const char* kDescription =
    "Continues a text by a model that tessera train has made.\n";

constexpr const char* kFooter = R"(
Example:
  tessera generate run --prompt "It is a truth" --tokens 300 --temperature 0.7

Prints the prompt and what the model makes of it. A low temperature gives the
likeliest text (0: always the likeliest token), a high one more surprises.
--top-k and --top-p leave unlikely tokens out. The same seed gives the same text.

Under tessera run -n N the model is spread over N ranks, and rank 0 prints.
Exit codes: 2 wrong options, 22 the folder has no weights. More in docs/train.md.)";

struct GenerateFlags {
  std::string folder;
  std::string prompt = "\n";
  train::GenerateOptions options = {};
};

std::vector<int64_t> tokens_of(const train::TextCodec& codec,
                               const std::string& prompt) {
  require(!prompt.empty(),
          [] { return str("--prompt is empty; give one character or more."); });
  const auto encoded = codec.encode(prompt);
  return {encoded.begin(), encoded.end()};
}

int generate(const GenerateFlags& flags, const train::TrainConfig& config,
             const World& world) {
  const auto codec =
      train::make_text_codec(train::load_tokenizer(flags.folder));
  train::GenerateOptions options = flags.options;
  options.prompt = tokens_of(*codec, flags.prompt);
  options.window = config.model.seq;
  const auto model = train::load_model(config, world, flags.folder);
  // All tokens come from the same weights: gather them once.
  const FullParameters whole(*model, Write::discard);
  const auto tokens = train::generate(*model, options);
  if (world.rank() == 0) {
    std::cout << flags.prompt << codec->decode(tokens) << std::endl;
  }
  return 0;
}

}  // namespace

std::function<int()> add_generate_command(CLI::App& app,
                                          const WordsAfterDashes& words) {
  const auto flags = std::make_shared<GenerateFlags>();
  train::GenerateOptions& options = flags->options;
  app.description(kDescription);
  app.formatter(
      std::make_shared<UsageFormatter>("tessera generate RUN [options]"));
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("RUN", flags->folder, "Folder of a run")->required();
  app.add_option("--prompt", flags->prompt, "Text to continue");
  app.add_option("--tokens", options.num_tokens, "How many tokens to add");
  app.add_option("--temperature", options.sample.temperature,
                 "Below 1: likelier tokens; 0: the likeliest");
  app.add_option("--top-k", options.sample.top_k,
                 "Choose among the K likeliest tokens; 0: all");
  app.add_option("--top-p", options.sample.top_p,
                 "Choose among the likeliest tokens that have this much");
  app.add_option("--seed", options.seed, "Another seed, another text");
  return [flags, words] {
    refuse_words_after_dashes("generate", words);
    train::TrainConfig config;
    return run_on_world(
        "generate", [&] { config = train::load_config(flags->folder); },
        [] { return InitOptions{}; },
        [&](const World& world) { return generate(*flags, config, world); });
  };
}

}  // namespace tessera::cli
