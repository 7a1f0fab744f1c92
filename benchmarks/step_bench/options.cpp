#include "benchmarks/step_bench/options.h"

#include <CLI/CLI.hpp>

namespace step_bench {
namespace {

ModelConfig llama(int64_t dim, int64_t layers, int64_t heads, int64_t kv_heads,
                  int64_t ffn, int64_t vocab, int64_t seq) {
  return {.vocab = vocab,
          .dim = dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = kv_heads,
          .ffn = ffn,
          .seq = seq,
          .rope_base = 500000.0};
}

//                            dim layers heads kv    ffn   vocab   seq
const std::array kPresets = {
    Preset{"tiny", llama(256, 4, 4, 4, 688, 4096, 256), 4},
    Preset{"124m", llama(768, 12, 12, 12, 2048, 32000, 1024), 8},
    Preset{"350m", llama(1024, 24, 16, 16, 2816, 32000, 2048), 4},
    Preset{"1b", llama(2048, 16, 32, 8, 8192, 32000, 4096), 2},
    Preset{"3b", llama(3072, 28, 24, 8, 8192, 32000, 4096), 2},
    Preset{"8b", llama(4096, 32, 32, 8, 14336, 128256, 4096), 1},
};

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    names.emplace_back(preset.name);
  }
  return names;
}

/// Fills in what the preset decides and the command line left open.
void apply_preset(Options& options, int64_t seq) {
  for (const Preset& preset : kPresets) {
    if (options.preset == preset.name) {
      options.model = preset.model;
      options.batch = options.batch > 0 ? options.batch : preset.batch;
    }
  }
  options.model.seq = seq > 0 ? seq : options.model.seq;
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  int64_t seq = 0;
  CLI::App app("Measures training steps of a Llama-type model.");
  app.option_defaults()->always_capture_default();
  const auto positive = CLI::PositiveNumber;
  app.add_option("--preset", options.preset, "model")
      ->check(CLI::IsMember(preset_names()));
  app.add_option("--steps", options.steps, "measured")->check(positive);
  app.add_option("--warmup", options.warmup, "steps before")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batch", options.batch, "sequences a rank; 0: the preset's");
  app.add_option("--seq", seq, "tokens in a sequence; 0: the preset's");
  app.add_option("--accum", options.accum, "backwards a step")->check(positive);
  app.add_option("--peak-tflops", options.peak_tflops, "of one GPU, for MFU");
  app.add_flag_callback(
      "--fp32", [&] { options.precision = Precision::float32; },
      "no mixed precision");
  app.add_flag_callback(
      "--no-reshard", [&] { options.reshard = false; },
      "keep full parameters between forward and backward");
  app.add_flag_callback(
      "--plain", [&] { options.strategy = Strategy::plain; },
      "one process, no sharding: what the compute alone takes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    std::exit(app.exit(help));
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return std::nullopt;
  }
  apply_preset(options, seq);
  return options;
}

}  // namespace step_bench
