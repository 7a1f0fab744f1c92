#include "tessera/module/recompute.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "tessera/base/error.h"
#include "tessera/module/run_settings.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;

// How many regions this thread is inside of. Of the thread: backward runs on
// the engine's.
thread_local int first_runs = 0;
thread_local int second_runs = 0;

class Inside {
 public:
  explicit Inside(int& count) : count_(count) { ++count_; }
  ~Inside() { --count_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  int& count_;
};

/// What the second run needs beside the inputs, which autograd keeps.
struct Call : torch::CustomClassHolder {
  Region region;
  RunSettings settings;
  std::vector<bool> input_defined;
  size_t num_outputs = 0;

  Call(const Region& region, const TensorVector& inputs,
       const RecomputeOptions& options)
      : region(region), settings(inputs, options.random) {
    for (const Tensor& input : inputs) input_defined.push_back(input.defined());
  }

  /// The region's inputs out of those that are defined.
  [[nodiscard]] TensorVector with_undefined(const TensorVector& defined) const {
    TensorVector all;
    size_t next = 0;
    for (const bool is_defined : input_defined) {
      all.push_back(is_defined ? defined[next++] : Tensor());
    }
    return all;
  }

  [[nodiscard]] TensorVector run_again(const TensorVector& inputs) const {
    const torch::AutoGradMode grad_mode(true);
    const RunSettingsScope scope(settings);
    const Inside inside(second_runs);
    TensorVector outputs = region(with_undefined(inputs));
    require<InvalidState>(outputs.size() == num_outputs, [&] {
      return str("recompute: the second run of a region returned ",
                 outputs.size(), " tensors, the first ", num_outputs,
                 "; a region must do the same in both.");
    });
    return outputs;
  }
};

TensorVector only_defined(const TensorVector& tensors) {
  TensorVector defined;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) defined.push_back(tensor);
  }
  return defined;
}

/// Fresh leaves with the same values.
TensorVector cut_off(const TensorVector& tensors) {
  TensorVector leaves;
  for (const Tensor& tensor : tensors) {
    leaves.push_back(tensor.detach().requires_grad_(tensor.requires_grad()));
  }
  return leaves;
}

/// Backward through the second run: into the parameters, and to `inputs`.
void run_backward(const TensorVector& outputs, const TensorVector& gradients) {
  TensorVector roots;
  TensorVector seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].requires_grad() || !gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

void check_backward() {
  using torch::autograd::Engine;
  require<InvalidState>(Engine::get_default_engine().is_checkpoint_valid(), [] {
    return str(
        "recompute: gradients were asked for by name "
        "(torch::autograd::grad, or backward with inputs), but a region "
        "leaves its parameters' gradients in .grad. Call backward().");
  });
  require<Unsupported>(!torch::GradMode::is_enabled(), [] {
    return str(
        "recompute: the gradient of a region cannot be differentiated again "
        "(create_graph). Call the region's function itself.");
  });
}

/// The first input is `marker`, which makes the outputs part of the graph even
/// if only the region's parameters require gradients.
struct Recompute : torch::autograd::Function<Recompute> {
  static TensorVector forward(AutogradContext* context,
                              const Tensor& /*marker*/, at::TensorList defined,
                              const c10::intrusive_ptr<Call>& call) {
    const TensorVector inputs = defined.vec();
    TensorVector outputs;
    {
      const Inside inside(first_runs);
      outputs = call->region(call->with_undefined(inputs));
    }
    for (const Tensor& output : outputs) {
      require<InvalidArgument>(output.defined(), [] {
        return str("recompute: the region returned an undefined tensor.");
      });
    }
    call->num_outputs = outputs.size();
    context->save_for_backward(inputs);
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    context->set_materialize_grads(false);
    return outputs;
  }

  static TensorVector backward(AutogradContext* context,
                               const TensorVector& gradients) {
    check_backward();
    const auto call = c10::static_intrusive_pointer_cast<Call>(
        context->saved_data["call"].toCapsule());
    const TensorVector inputs = cut_off(context->get_saved_variables());
    run_backward(call->run_again(inputs), gradients);
    TensorVector results = {Tensor()};
    for (const Tensor& input : inputs) results.push_back(input.grad());
    results.emplace_back();
    return results;
  }
};

}  // namespace

bool in_first_run() { return first_runs > 0; }
bool in_second_run() { return second_runs > 0; }

TensorVector recompute(const Region& region, const TensorVector& inputs,
                       const RecomputeOptions& options) {
  if (!torch::GradMode::is_enabled()) return region(inputs);
  const TensorVector defined = only_defined(inputs);
  return Recompute::apply(at::zeros({}).requires_grad_(),
                          at::TensorList(defined),
                          c10::make_intrusive<Call>(region, inputs, options));
}

}  // namespace tessera
