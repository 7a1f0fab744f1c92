#include "examples/train_text/options.h"

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"

namespace train_text {
namespace {

using tessera::InvalidArgument;
using tessera::require;
using tessera::str;

void add_model(CLI::App& app, ModelConfig& m) {
  app.add_option("--seq", m.seq, "bytes in a sequence");
  app.add_option("--dim", m.dim, "width of the model");
  app.add_option("--layers", m.layers, "blocks");
  app.add_option("--heads", m.heads, "attention heads");
  app.add_option("--kv-heads", m.kv_heads, "heads of keys; 0: as --heads");
  app.add_option("--ffn", m.ffn, "width of the feed-forward layer");
}

void add_training(CLI::App& app, Options& o) {
  app.add_option("--batch", o.batch, "sequences in a step, over all ranks");
  app.add_option("--steps", o.steps, "steps to train");
  app.add_option("--minutes", o.minutes, "train that long instead");
  app.add_option("--lr", o.lr, "learning rate after the warm-up");
  app.add_option("--warmup", o.warmup, "share of the training that warms up");
  app.add_option("--weight-decay", o.weight_decay, "of AdamW");
  app.add_option("--max-norm", o.max_norm, "gradients are clipped to it");
  app.add_option("--seed", o.seed, "of weights, data order and sample");
}

void add_output(CLI::App& app, Options& o) {
  app.add_option("--out", o.out, "folder for result.json");
  app.add_option("--print-every", o.print_every, "steps");
  app.add_option("--evaluate-every", o.evaluate_every, "steps");
  app.add_option("--sample-bytes", o.sample_bytes, "length of the sample");
  app.add_option("--temperature", o.temperature, "of the sample");
  app.add_option("--prompt", o.prompt, "that the sample continues");
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small Llama-type model on the bytes of a text.");
  app.option_defaults()->always_capture_default();
  options.model.kv_heads = 0;
  app.add_option("--data", options.data, "folder of tools/fetch_corpus");
  app.add_flag_callback(
      "--plain", [&] { options.strategy = Strategy::plain; },
      "one process and no sharding, to compare");
  add_model(app, options.model);
  add_training(app, options);
  add_output(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return std::nullopt;
  }
  if (options.model.kv_heads == 0) {
    options.model.kv_heads = options.model.heads;
  }
  return options;
}

void validate(const Options& o, int world_size) {
  const auto at_least_one = [](const char* name, int64_t value) {
    require<InvalidArgument>(value > 0, [&] {
      return str("train_text: ", name, " is ", value, "; give 1 or more.");
    });
  };
  at_least_one("--seq", o.model.seq);
  at_least_one("--layers", o.model.layers);
  at_least_one("--heads", o.model.heads);
  at_least_one("--ffn", o.model.ffn);
  at_least_one("--steps", o.steps);
  at_least_one("--batch", o.batch);
  at_least_one("--print-every", o.print_every);
  at_least_one("--evaluate-every", o.evaluate_every);
  require<InvalidArgument>(o.batch % world_size == 0, [&] {
    return str("train_text: --batch ", o.batch, " over ", world_size,
               " ranks; give a multiple of the number of ranks.");
  });
  require<InvalidArgument>(o.model.dim % (2 * o.model.heads) == 0, [&] {
    return str("train_text: --dim ", o.model.dim, " with --heads ",
               o.model.heads, "; each head needs an even width.");
  });
  require<InvalidArgument>(
      o.model.kv_heads > 0 && o.model.heads % o.model.kv_heads == 0, [&] {
        return str("train_text: --kv-heads ", o.model.kv_heads,
                   " must divide --heads ", o.model.heads, ".");
      });
  require<InvalidArgument>(
      o.strategy == Strategy::sharded || world_size == 1, [&] {
        return str("train_text: --plain on ", world_size,
                   " ranks would train as many separate models; start one.");
      });
}

}  // namespace train_text
