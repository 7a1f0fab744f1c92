// A whole training step in one CUDA graph: forward, backward, clipping, the
// optimizer and all collectives, issued by the host in one launch.
//
//   tessera::AdamW optimizer(model->parameters(), 3e-4);
//   GraphedStep step(*model, optimizer, mesh, [&](const TensorVector& in) {
//     at::Tensor loss = cross_entropy(model->forward(in[0]), in[1]);
//     loss.backward();
//     clip_grad_norm_(model->parameters(), 1.0);
//     optimizer.step();
//     optimizer.zero_grad();
//     return TensorVector{loss.detach()};
//   });
//   for (auto& batch : loader) {
//     schedule.step();                                 // rates may change
//     at::Tensor loss = step({batch.input, batch.target})[0];
//   }
//
// The first calls run the body as it is (each is a full step); then one call
// captures it, and from there on each call copies its inputs to where the graph
// reads them, and replays. What the body does on the host happens in the
// capture only: it must do the same in every step, and read no value of the
// device. It may hold several forwards and backwards (accumulation), recompute,
// and dropout, whose random numbers go on from step to step as without a graph.
//
// Between calls the model can be evaluated, saved and loaded. A load of the
// optimizer's state makes the next call capture anew.
//
// The body may read sharded modules outside of `model`, too; what others write
// to them between calls is seen, as it is for the model. Where it only writes
// one (a moving average), call `mark_changed(module)` before that is used.
//
// What a graph does not follow: changes of weight decay, betas and eps, of
// requires_grad, of train() and eval(). Call `capture_again` after them. The
// steps of torch::optim's optimizers count on the host and must not be
// captured.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/comm/collective_log.h"
#include "tessera/graph/device_graph.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/module/recompute.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/step_units.h"

namespace tessera {

enum class OnCaptureFailure {
  raise,
  run_eagerly  // with a warning; all later steps too
};

struct GraphedStepOptions {
  // Calls before the one that captures. They show the order of gathers and make
  // the optimizer's state, so one at least.
  int warmup = 3;
  OnCaptureFailure on_failure = OnCaptureFailure::raise;
};

class GraphedStep {
 public:
  /// From the inputs, on the mesh's device, to the outputs.
  using Body = std::function<TensorVector(const TensorVector&)>;

  /// `model` and `optimizer` must outlive it; `body` is called on all ranks of
  /// the mesh's world.
  /// Errors: Unsupported on a device or in a build without CUDA graphs, and for
  ///         parameters on another device (CPU offload); InvalidArgument for
  ///         warmup < 1.
  GraphedStep(torch::nn::Module& model, AdamW& optimizer,
              const DeviceMesh& mesh, Body body,
              const GraphedStepOptions& options = {});

  /// One step. Every rank calls it alike. The inputs may be on any device, and
  /// keep their sizes and dtypes from call to call. The outputs are copies.
  /// Errors: InvalidArgument for inputs unlike those of the first call; at the
  ///         capture Unsupported, on every rank, with the rank, the operator
  ///         and the reason, when the step cannot be captured on some rank: the
  ///         step was not done then; CommError when the ranks captured
  ///         different collectives.
  TensorVector operator()(const TensorVector& inputs);

  [[nodiscard]] bool captured() const { return graph_.captured(); }
  /// The next call captures. Every rank calls it alike.
  void capture_again() { graph_.drop(); }

 private:
  void take_inputs(const TensorVector& inputs);
  void run_eagerly();
  void capture();
  void forget_capture();
  [[nodiscard]] bool all_captured(const std::string& failure);

  torch::nn::Module& model_;
  AdamW& optimizer_;
  const DeviceMesh mesh_;
  const Body body_;
  const GraphedStepOptions options_;
  DeviceGraph graph_;
  TensorVector inputs_;
  TensorVector outputs_;
  int num_eager_ = 0;
  bool eager_for_good_ = false;
  CollectiveLog::Hashes hashes_;  // before the capture
  StepUnits units_;
  uint64_t state_version_ = 0;
};

}  // namespace tessera
