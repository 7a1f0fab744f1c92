#include "benchmarks/step_bench/options.h"

#include <ATen/Context.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace step_bench {
namespace {

using tessera::Transport;
using tessera::train::ModelKernels;
using tessera::train::RecomputePolicy;

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : tessera::train::model_presets()) {
    names.emplace_back(preset.name);
  }
  return names;
}

/// Fills in what the preset decides and the command line left open.
void apply_preset(Options& options, int64_t seq) {
  const auto kernels = options.model.kernels;
  const auto recompute = options.model.recompute;
  const auto selective_last = options.model.selective_last;
  const auto offload_blocks = options.model.offload_blocks;
  const auto& preset = tessera::train::model_preset(options.preset);
  options.model = preset.model;
  options.model.kernels = kernels;
  options.model.recompute = recompute;
  options.model.selective_last = selective_last;
  options.model.offload_blocks = offload_blocks;
  options.batch = options.batch > 0 ? options.batch : preset.batch;
  options.model.seq = seq > 0 ? seq : options.model.seq;
  validate(options.model);
}

void add_recompute_options(CLI::App& app, Options& options) {
  app.add_option("--recompute", options.model.recompute,
                 "in backward: none, selective, offload, but_attention or "
                 "block")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, RecomputePolicy>{
              {"none", RecomputePolicy::none},
              {"selective", RecomputePolicy::selective},
              {"offload", RecomputePolicy::offload},
              {"but_attention", RecomputePolicy::but_attention},
              {"block", RecomputePolicy::block}}));
  app.add_option("--selective-last", options.model.selective_last,
                 "blocks at the end that recompute selectively")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--offload-blocks", options.model.offload_blocks,
                 "others that keep their activations in host memory")
      ->check(CLI::NonNegativeNumber);
}

void add_sharding_options(CLI::App& app, Options& options) {
  auto* const precision =
      app.add_option("--precision", options.precision,
                     "of compute: bf16, fp16 (with a GradScaler) or fp32")
          ->transform(CLI::CheckedTransformer(std::map<std::string, Precision>{
              {"bf16", Precision::mixed_bfloat16},
              {"fp16", Precision::mixed_float16},
              {"fp32", Precision::float32}}));
  app.add_flag_callback(
         "--fp32", [&] { options.precision = Precision::float32; },
         "as --precision fp32")
      ->excludes(precision);
  app.add_flag_callback(
      "--no-reshard", [&] { options.reshard = false; },
      "keep full parameters between forward and backward");
  app.add_option("--replicas", options.replicas,
                 "copies of the sharded model (HSDP)")
      ->check(CLI::PositiveNumber);
  app.add_flag("--offload", options.offload,
               "shards and optimizer in host memory");
  app.add_flag("--float8", options.float8, "gather weights as float8");
  app.add_option("--stepping", options.stepping,
                 "of the optimizer: clipped, unclipped or in_backward")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Stepping>{
          {"clipped", Stepping::clipped},
          {"unclipped", Stepping::unclipped},
          {"in_backward", Stepping::in_backward}}));
  app.add_flag("--late-norm", options.late_norm,
               "take the norm for clipping when backward is over, not in it");
  app.add_option("--transport", options.transport,
                 "of gathers and reduce-scatters: nccl or copy_engines")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Transport>{
          {"nccl", Transport::nccl},
          {"copy_engines", Transport::copy_engines}}));
  app.add_flag("--tight", options.tight,
               "backward has less of other units beside the one it is in");
  app.add_option("--prefetch", options.prefetch,
                 "units whose gathers are started ahead")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--gather-copy", options.gather_copy,
               "keep the shards in the compute dtype, too");
  app.add_flag_callback(
      "--graph", [&] { options.issue = Issue::graph; },
      "the whole step as one CUDA graph; wants --warmup 4 or more");
}

/// Why these options do not go together; empty when they do.
std::string contradiction_in(const Options& options) {
  if (options.issue == Issue::graph && options.warmup <= kGraphWarmup) {
    return tessera::str("--graph wants --warmup ", kGraphWarmup + 1,
                        " or more");
  }
  if (options.strategy == Strategy::data_parallel &&
      (options.issue == Issue::graph || options.offload || options.float8 ||
       !options.reshard || options.replicas > 1 || options.transport ||
       options.prefetch || options.tight || options.gather_copy ||
       options.stepping == Stepping::in_backward ||
       options.precision == Precision::mixed_float16)) {
    return "--ddp shards nothing, is no graph and has no fp16; leave such "
           "options out";
  }
  if (options.precision != Precision::mixed_float16) return "";
  if (options.strategy == Strategy::plain) {
    return "--plain computes in float32; leave --precision fp16 out";
  }
  if (options.stepping == Stepping::in_backward) {
    return "--precision fp16 scales the loss, and units that step in backward "
           "cannot wait for what a GradScaler finds; take --stepping clipped "
           "or unclipped";
  }
  return "";
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
  app.add_option("--kernels", options.model.kernels,
                 "of norms, positions, SwiGLU and loss: plain or fused")
      ->transform(CLI::CheckedTransformer(std::map<std::string, ModelKernels>{
          {"plain", ModelKernels::plain}, {"fused", ModelKernels::fused}}));
  add_recompute_options(app, options);
  add_sharding_options(app, options);
  app.add_flag("--same-start", options.same_start,
               "the weights that the peer has with its --same-start");
  app.add_option("--trace", options.trace,
                 "file for a Kineto trace of three more steps of rank 0");
  app.add_option("--memory-history", options.memory_history,
                 "file for what rank 0's allocator does in one step");
  app.add_flag_callback(
      "--deterministic",
      [] { at::globalContext().setDeterministicAlgorithms(true, false); },
      "the same numbers in every run");
  app.add_flag_callback(
      "--ddp", [&] { options.strategy = Strategy::data_parallel; },
      "DistributedDataParallel instead of shards; bf16 by autocast");
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
  const std::string contradiction = contradiction_in(options);
  if (contradiction.empty()) return options;
  std::fprintf(stderr, "step_bench: %s\n", contradiction.c_str());
  return std::nullopt;
}

}  // namespace step_bench
