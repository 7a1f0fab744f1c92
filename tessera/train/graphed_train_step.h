// `train_step`, issued as one CUDA graph.
//
//   GraphedTrainStep step(config, *model, adamw, mesh);
//   StepResult result = step(micro_batches, {.wish = Wish::go_on});
#pragma once

#include <memory>
#include <vector>

#include "tessera/graph/graphed_step.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/train/language_model.h"
#include "tessera/train/train_config.h"
#include "tessera/train/train_step.h"

namespace tessera::train {

class GraphedTrainStep {
 public:
  /// `model` and `optimizer` must outlive it, and it stays where it is. `mesh`
  /// has one axis. Clips to config.train.max_norm.
  /// Errors: Unsupported on a device without CUDA graphs.
  GraphedTrainStep(const TrainConfig& config, LanguageModel& model,
                   AdamW& optimizer, const DeviceMesh& mesh);
  GraphedTrainStep(const GraphedTrainStep&) = delete;
  GraphedTrainStep& operator=(const GraphedTrainStep&) = delete;

  /// As `train_step`, with the same results; of the options those of clipping
  /// and stepping are the config's, and `before_change` is called before all
  /// of the step. A loss or norm that is not finite is found on the device,
  /// which then leaves weights and optimizer alone.
  /// Errors: those of GraphedStep.
  StepResult operator()(const std::vector<Batch>& micro_batches,
                        const StepOptions& options);

 private:
  [[nodiscard]] TensorVector body(const TensorVector& inputs);

  LanguageModel& model_;
  AdamW& optimizer_;
  const DeviceMesh mesh_;
  const StepOptions options_;
  GraphedStep step_;
};

/// Null when the configuration does not ask for a graph, or asks for one only
/// where it is possible and the device has none: rank 0 says so then.
/// Errors: those of `check_graph`.
[[nodiscard]] std::unique_ptr<GraphedTrainStep> make_graphed_train_step(
    const TrainConfig& config, LanguageModel& model,
    torch::optim::Optimizer& optimizer, const DeviceMesh& mesh);

/// Errors: InvalidArgument when `config` insists on graphs and the device has
///         none.
void check_graph(const TrainConfig& config, c10::Device device);

}  // namespace tessera::train
