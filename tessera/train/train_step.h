// One update of the weights.
//
//   StepResult result = train_step(*model, *optimizer, micro_batches, mesh,
//                                  {.max_norm = 1.0});
//
// The gradient is that of the mean loss over all tokens of the step, over all
// micro-batches and ranks, however unevenly the tokens lie.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/unit_memory.h"
#include "tessera/train/language_model.h"
#include "tessera/train/train_config.h"

namespace tessera::train {

/// [B, N] each, int64, on any device. The target is the token after each input
/// token, or kNoTarget.
struct Batch {
  at::Tensor input;
  at::Tensor target;
};

enum class Wish { go_on, stop };

/// Of a checkpoint that is being written meanwhile.
enum class SaveHealth { fine, failed };

/// What is done with all gradients before the step: their norm is taken, and
/// they are clipped to max_norm (0: they are not); AdamW does so as it reads
/// them. Nothing where they are gone then (OptimizerStep::in_backward).
/// `before_change` is called when the weights are about to change: by what is
/// issued to the current stream after it, as of AsyncSaver.
struct StepOptions {
  double max_norm = 1.0;
  OptimizerStep optimizer_step = OptimizerStep::after_backward;
  Wish wish = Wish::go_on;             // of this rank: see StepResult::wish
  SaveHealth save = SaveHealth::fine;  // likewise
  std::function<void()> before_change = {};
};

/// Those that a config decides.
[[nodiscard]] StepOptions step_options(const TrainConfig& config);

/// The same on every rank.
struct StepResult {
  double loss = 0;       // mean over all tokens of the step, nats
  double grad_norm = 0;  // before clipping; 0 too where it is not known
                         // (OptimizerStep::in_backward)
  int64_t tokens = 0;    // that had a target
  bool updated = true;   // false: loss or norm was not finite; nothing changed
  Wish wish = Wish::go_on;             // stop: some rank wished to
  SaveHealth save = SaveHealth::fine;  // failed: on some rank
};

/// Forward, backward, clip, update. A collective: every rank brings as many
/// micro-batches. The gradients are sharded, hence equal work on all ranks;
/// they are summed over ranks once, with the last micro-batch. `mesh` has one
/// axis. A loss or norm that is not finite leaves weights and optimizer as they
/// were; but not where units step inside of backward, which `model` must be
/// told before (let_step_in_backward).
StepResult train_step(LanguageModel& model, torch::optim::Optimizer& optimizer,
                      const std::vector<Batch>& micro_batches,
                      const DeviceMesh& mesh, const StepOptions& options);

// Its parts, for steps that are issued as a CUDA graph.
/// Of this rank: targets that count, whether it wishes to stop, whether a save
/// failed: doubles [3], on the host.
[[nodiscard]] at::Tensor numbers_of_rank(
    const std::vector<Batch>& micro_batches, const StepOptions& options);
/// Gradients, not clipped yet. Where units step inside of backward, calls
/// `before_change` before it. Returns doubles [5] on the mesh's device, the
/// same on all ranks: the sums of `numbers`, the sum of losses, the norm. Waits
/// for nothing.
[[nodiscard]] at::Tensor compute_gradients(
    LanguageModel& model, const std::vector<Batch>& micro_batches,
    const at::Tensor& numbers, const DeviceMesh& mesh,
    const StepOptions& options);
/// Clips and steps, in one pass, by the norm that `compute_gradients` returned.
/// `skip` as of AdamW::step_unless, or undefined. Waits for nothing.
void step_clipped(AdamW& optimizer, const at::Tensor& computed,
                  const StepOptions& options, const at::Tensor& skip = {});
/// Reads what `compute_gradients` returned: waits for the device.
[[nodiscard]] StepResult read_result(const at::Tensor& computed);

}  // namespace tessera::train
