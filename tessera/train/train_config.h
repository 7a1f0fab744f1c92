// All that a training run is told, as one value. docs/train.md has the keys.
//
//   const std::string overrides[] = {"train.steps=100"};
//   TrainConfig config = read_train_config("train.toml", overrides);
//
// Torch-free: it can be read, checked and printed without a device.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/optim/lr_factor.h"
#include "tessera/train/distributed_config.h"
#include "tessera/train/model_presets.h"
#include "tessera/train/profile_config.h"
#include "tessera/train/shard_config.h"

namespace tessera::train {

struct DataConfig {
  std::string tokens;    // token file of tessera prepare
  std::string held_out;  // a second one to measure on; empty: the validation
                         // part of the first
  bool verify = true;    // compare the checksum of all tokens first
};

enum class OnNonFinite { stop, skip };

/// Whether each step is issued as one CUDA graph; if_possible: else without.
enum class GraphUse { off, on, if_possible };

struct LoopConfig {
  int64_t steps = 1000;
  int64_t batch = 8;            // sequences of one forward of one rank
  int64_t tokens_per_step = 0;  // over all ranks; 0: one forward for each rank
  uint64_t seed = 1;
  double max_norm = 1.0;  // 0: gradients are not clipped
  OnNonFinite on_nonfinite = OnNonFinite::stop;
  bool deterministic = false;
  GraphUse graph = GraphUse::off;
  bool step_in_backward = false;  // units step while backward goes on
};

enum class OptimizerKind { fused_adamw, torch_adamw };

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::fused_adamw;
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // of matrices; vectors have none
};

struct EvaluationConfig {
  int64_t every = 100;        // steps; 0: at the end only
  int64_t max_windows = 256;  // of the held-out text; 0: all. At the end: all
};

enum class SaveHow {
  async,  // the loop goes on while files are written
  sync,   // it waits, and needs no second copy of the state in host memory
};

/// docs/train.md, "Checkpoints".
struct CheckpointConfig {
  bool enabled = true;
  int64_t every = 500;  // steps; 0: at the end only
  SaveHow how = SaveHow::async;
  int64_t keep_latest = 2;  // this many; 0: all
  int64_t keep_every = 0;   // and every step that this divides; 0: none such
  bool keep_best = true;    // and the one of the best held-out loss
};

struct OutputConfig {
  std::string folder = "run";
  int64_t print_every = 10;
  bool tensorboard = true;
  double peak_tflops = 0;  // of one device, for MFU; 0: not known
};

struct TrainConfig {
  std::string preset;  // that `model` began with; empty: none
  ModelConfig model;
  double init_std = 0.02;
  DataConfig data;
  LoopConfig train;
  OptimizerConfig optimizer;
  LrScheduleOptions schedule;  // total_steps is train.steps
  ShardConfig shard;
  EvaluationConfig evaluation;
  CheckpointConfig checkpoint;
  OutputConfig output;
  ProfileConfig profile;
  DistributedConfig distributed;

  std::string toml;  // all of the above, as a file that reads back
};

/// overrides: "train.steps=100", or with dashes in front; the last one counts.
/// Errors: InvalidArgument that begins with the file and line, or "command
///         line": for a key that does not exist, with the nearest one; a value
///         of another type or out of range; values that do not go together.
[[nodiscard]] TrainConfig read_train_config(
    const std::string& path, std::span<const std::string> overrides = {});

/// What counts where no file says otherwise. Errors: as above.
[[nodiscard]] TrainConfig default_train_config(
    std::span<const std::string> overrides = {});

/// `toml` with a comment over each key that says what it is.
[[nodiscard]] std::string explain_keys(const std::string& toml);

}  // namespace tessera::train
