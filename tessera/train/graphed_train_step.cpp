#include "tessera/train/graphed_train_step.h"

#include <torch/torch.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::train {
namespace {

GraphedStepOptions graph_options(const TrainConfig& config) {
  return {.on_failure = config.train.graph == GraphUse::if_possible
                            ? OnCaptureFailure::run_eagerly
                            : OnCaptureFailure::raise};
}

}  // namespace

GraphedTrainStep::GraphedTrainStep(const TrainConfig& config,
                                   LanguageModel& model, AdamW& optimizer,
                                   const DeviceMesh& mesh)
    : model_(model),
      optimizer_(optimizer),
      mesh_(mesh),
      options_(step_options(config)),
      step_(
          model, optimizer, mesh,
          [this](const TensorVector& inputs) { return body(inputs); },
          graph_options(config)) {}

// Inputs: the numbers of this rank, then input and target of each micro-batch.
StepResult GraphedTrainStep::operator()(const std::vector<Batch>& micro_batches,
                                        const StepOptions& options) {
  TensorVector inputs = {numbers_of_rank(micro_batches, options)};
  for (const Batch& batch : micro_batches) {
    inputs.push_back(batch.input);
    inputs.push_back(batch.target);
  }
  if (options.before_change) options.before_change();
  return read_result(step_(inputs)[0]);
}

TensorVector GraphedTrainStep::body(const TensorVector& inputs) {
  std::vector<Batch> micro_batches;
  for (size_t i = 1; i < inputs.size(); i += 2) {
    micro_batches.push_back({inputs[i], inputs[i + 1]});
  }
  const auto computed =
      compute_gradients(model_, micro_batches, inputs[0], mesh_, options_);
  step_clipped(optimizer_, computed, options_,
               computed.isfinite().all().logical_not().to(torch::kFloat));
  optimizer_.zero_grad();
  return {computed};
}

std::unique_ptr<GraphedTrainStep> make_graphed_train_step(
    const TrainConfig& config, LanguageModel& model,
    torch::optim::Optimizer& optimizer, const DeviceMesh& mesh) {
  if (config.train.graph == GraphUse::off) return nullptr;
  check_graph(config, mesh.device());
  if (!mesh.device().is_cuda()) {
    if (mesh.world().rank() == 0) {
      log_warning(tessera::str("train.graph is if_possible, and ",
                               mesh.device(),
                               " has no CUDA graphs: steps run without."));
    }
    return nullptr;
  }
  // Another optimizer was refused with the configuration.
  return std::make_unique<GraphedTrainStep>(
      config, model, dynamic_cast<AdamW&>(optimizer), mesh);
}

void check_graph(const TrainConfig& config, c10::Device device) {
  require<InvalidArgument>(
      config.train.graph != GraphUse::on || device.is_cuda(), [&] {
        return tessera::str(
            "train.graph is on, but this job computes on ", device,
            ", which has no CUDA graphs; set it to off, or to if_possible.");
      });
}

}  // namespace tessera::train
