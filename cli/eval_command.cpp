// `tessera eval`: how well the weights of a run predict a text.
#include <CLI/CLI.hpp>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/train_program.h"
#include "cli/usage_formatter.h"
#include "tessera/base/error.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/train/agree_on_failure.h"
#include "tessera/train/build_model_meta.h"
#include "tessera/train/evaluate.h"
#include "tessera/train/progress_line.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/train_data.h"

namespace tessera::cli {
namespace {

constexpr const char* kDescription =
    "Measures a model that tessera train has made on a text.\n";

constexpr const char* kFooter = R"(
Example:
  tessera run -n 2 -- tessera eval run --data other.tok

Prints the mean loss in nats a token and its perplexity, over all tokens of the
validation part (of all tokens, if the file has no such part). Without --data it
takes the text that the run was measured on.
Exit codes: 2 wrong options, 10 to 13 the data, 22 the folder has no weights.)";

struct EvalFlags {
  std::string folder;
  std::string data;
  int64_t batch = 8;
};

train::TrainConfig read_config(const EvalFlags& flags) {
  require(flags.batch > 0,
          [&] { return str("--batch is ", flags.batch, "; give 1 or more."); });
  train::TrainConfig config = train::load_config(flags.folder);
  if (!flags.data.empty()) config.data.held_out = flags.data;
  return config;
}

int evaluate(const EvalFlags& flags, const train::TrainConfig& config,
             const World& world) {
  std::unique_ptr<train::HeldOut> text;
  train::agree_on_failure(
      world, [&] { text = std::make_unique<train::HeldOut>(config); });
  const auto model = train::load_model(config, world, flags.folder);
  const auto result = train::evaluate(
      *model, text->batches(), init_device_mesh(world), {.batch = flags.batch});
  if (world.rank() == 0) {
    std::cout << std::fixed << std::setprecision(4) << "loss " << result.loss
              << " nats a token, perplexity " << std::exp(result.loss)
              << ", over " << train::with_commas(result.tokens) << " tokens\n";
  }
  return 0;
}

}  // namespace

std::function<int()> add_eval_command(CLI::App& app,
                                      const WordsAfterDashes& words) {
  const auto flags = std::make_shared<EvalFlags>();
  app.description(kDescription);
  app.formatter(std::make_shared<UsageFormatter>("tessera eval RUN [options]"));
  app.footer(kFooter);
  app.add_option("RUN", flags->folder, "Folder of a run")->required();
  app.add_option("--data", flags->data, "Token file of tessera prepare");
  app.add_option("--batch", flags->batch, "Sequences of one forward of a rank")
      ->capture_default_str();
  return [flags, words] {
    refuse_words_after_dashes("eval", words);
    train::TrainConfig config;
    return run_on_world(
        "eval", [&] { config = read_config(*flags); },
        [] { return InitOptions{}; },
        [&](const World& world) { return evaluate(*flags, config, world); });
  };
}

}  // namespace tessera::cli
