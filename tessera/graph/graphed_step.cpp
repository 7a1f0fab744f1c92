#include "tessera/graph/graphed_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/comm/collective_log.h"
#include "tessera/comm/replayed_calls.h"
#include "tessera/comm/world.h"
#include "tessera/device/stream.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {

namespace {

bool alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

std::string describe(const at::Tensor& tensor) {
  return tessera::str(tensor.dtype().name(), " ", tensor.sizes());
}

/// A place is the hash of all collectives of a rank, a space, and the last one.
void require_same_collectives(const std::vector<std::string>& places) {
  const auto hash_of = [](const std::string& place) {
    return place.substr(0, place.find(' '));
  };
  for (size_t rank = 1; rank < places.size(); ++rank) {
    require<CommError>(hash_of(places[rank]) == hash_of(places[0]), [&] {
      return str(
          "GraphedStep: the ranks captured different collectives: rank "
          "0 ",
          places[0], "; rank ", rank, " ", places[rank], ".");
    });
  }
}

}  // namespace

GraphedStep::GraphedStep(torch::nn::Module& model, AdamW& optimizer,
                         const DeviceMesh& mesh, Body body,
                         const GraphedStepOptions& options)
    : model_(model),
      optimizer_(optimizer),
      mesh_(mesh),
      body_(std::move(body)),
      options_(options),
      graph_(mesh.device()) {
  require<InvalidArgument>(options.warmup >= 1, [&] {
    return str("GraphedStep: warmup is ", options.warmup,
               "; give 1 or more, for the first step makes the optimizer's "
               "state.");
  });
  for (const auto& parameter : model.named_parameters()) {
    require<Unsupported>(parameter.value().device() == mesh.device(), [&] {
      return tessera::str("GraphedStep: parameter '", parameter.key(),
                          "' is on ", parameter.value().device(),
                          "; a step on ", mesh.device(),
                          " can be captured only with all parameters there "
                          "(no CPUOffloadPolicy).");
    });
  }
}

TensorVector GraphedStep::operator()(const TensorVector& inputs) {
  mesh_.world().check_alive();
  take_inputs(inputs);
  optimizer_.write_rates();
  if (eager_for_good_ || num_eager_ < options_.warmup) {
    run_eagerly();
  } else {
    if (!graph_.captured() || state_version_ != optimizer_.state_version()) {
      capture();
    }
    if (graph_.captured()) {
      units_.before_replay();
      const auto stream = current_stream(mesh_.device());
      mesh_.world().before_replay(stream);
      graph_.replay();
      mesh_.world().after_replay(stream);
      units_.after_replay();
    } else {
      run_eagerly();
    }
  }
  at::NoGradGuard no_grad;
  TensorVector copies;
  for (const at::Tensor& output : outputs_) copies.push_back(output.clone());
  return copies;
}

void GraphedStep::take_inputs(const TensorVector& inputs) {
  at::NoGradGuard no_grad;
  if (inputs_.empty()) {
    for (const at::Tensor& input : inputs) {
      inputs_.push_back(
          at::empty(input.sizes(), input.options().device(mesh_.device())));
    }
  }
  require<InvalidArgument>(inputs.size() == inputs_.size(), [&] {
    return str("GraphedStep: got ", inputs.size(),
               " inputs; the first call had ", inputs_.size(), ".");
  });
  for (size_t i = 0; i < inputs.size(); ++i) {
    require<InvalidArgument>(alike(inputs[i], inputs_[i]), [&] {
      return str("GraphedStep: input ", i, " is ", describe(inputs[i]),
                 "; in the first call it was ", describe(inputs_[i]),
                 ". Make another GraphedStep for other sizes.");
    });
    inputs_[i].copy_(inputs[i], /*non_blocking=*/true);
  }
}

void GraphedStep::run_eagerly() {
  ++num_eager_;
  const StepUnits::Recording recording(units_, StepRun::eager);
  graph_.run([&] { outputs_ = body_(inputs_); });
}

void GraphedStep::capture() {
  outputs_.clear();
  units_.before_capture(model_);
  hashes_ = mesh_.world().log().hashes();
  std::string failure;
  try {
    ReplayedCalls& calls = mesh_.world().replayed();
    calls.prepare(mesh_.device());
    const StepUnits::Recording recording(units_, StepRun::capture);
    graph_.capture([&] {
      calls.begin();
      outputs_ = body_(inputs_);
      calls.end();
    });
  } catch (const std::exception& error) {
    failure = error.what();
    mesh_.world().replayed().abandon();
  }
  state_version_ = optimizer_.state_version();
  units_.after_capture();
  if (!all_captured(failure)) eager_for_good_ = true;
}

void GraphedStep::forget_capture() {
  outputs_.clear();
  graph_.drop();
  // A rank that failed entered fewer calls than the others.
  mesh_.world().log().put_back(hashes_);
  units_.reshard();
  optimizer_.zero_grad();
}

// What the ranks made of it is told to all of them before anyone replays.
bool GraphedStep::all_captured(const std::string& failure) {
  const World& world = mesh_.world();
  const std::string place =
      str(world.log().hash(), " ", world.log().describe());
  const std::string key = str("graphed_step/", world.next_id());
  const auto failures = world.exchange(key + "/failure", failure);
  const auto places = world.exchange(key + "/place", place);
  const auto first =
      std::find_if(failures.begin(), failures.end(),
                   [](const auto& each) { return !each.empty(); });
  if (first == failures.end()) {
    require_same_collectives(places);
    return true;
  }
  forget_capture();
  const std::string message =
      str("GraphedStep, rank ", first - failures.begin(), ": ", *first);
  if (options_.on_failure == OnCaptureFailure::raise)
    throw Unsupported(message);
  if (world.rank() == 0) {
    log_warning(message, " All steps run without a graph.");
  }
  return false;
}

}  // namespace tessera
