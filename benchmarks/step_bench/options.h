// The models that are measured, and what the command line chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/comm/world.h"
#include "tessera/train/model_presets.h"

namespace step_bench {

using tessera::train::ModelConfig;

/// When the optimizer steps: after gradients are clipped, without clipping, or
/// (without clipping) inside of backward.
enum class Stepping { clipped, unclipped, in_backward };
enum class Strategy { sharded, data_parallel, plain };
enum class Issue { eager, graph };
/// Steps without the graph before the one that captures it.
inline constexpr int kGraphWarmup = 3;

/// Of compute; masters and reductions are float32. With float16 the loss is
/// scaled by a GradScaler. Strategy::data_parallel has bfloat16 by autocast.
enum class Precision { mixed_bfloat16, mixed_float16, float32 };

struct Options {
  std::string preset = "tiny";  // those of benchmarks/peer/fsdp2_bench.py
  ModelConfig model;
  int64_t steps = 20;
  int64_t warmup = 5;
  int64_t batch = 0;  // of one rank and forward; 0: the preset's
  int64_t accum = 1;  // forwards and backwards in a step
  Strategy strategy = Strategy::sharded;
  Precision precision = Precision::mixed_bfloat16;
  bool reshard = true;
  int64_t replicas = 1;  // HSDP over (replicas, ranks / replicas)
  bool offload = false;  // shards and optimizer in pinned host memory
  bool float8 = false;   // gathers
  Stepping stepping = Stepping::clipped;
  std::optional<tessera::Transport> transport;  // unset: the environment's
  std::optional<size_t> prefetch;  // units gathered ahead
  bool tight = false;              // backward_overlap
  bool late_norm = false;          // taken when backward is over
  bool gather_copy = false;        // shards kept in the compute dtype, too
  bool same_start = false;         // weights by name, as the peer's
  std::string trace;  // file for a Kineto trace of three more steps; or none
  std::string memory_history;  // file for one of the allocator; or none
  Issue issue = Issue::eager;
  double peak_tflops = 989;
};

/// Ends the program for --help. Empty when the line is wrong; the reason is
/// then on stderr.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

}  // namespace step_bench
