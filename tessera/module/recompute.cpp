#include "tessera/module/recompute.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/module/run_settings.h"

namespace tessera {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::edge_list;

// How many regions this thread is inside of. Of the thread: backward runs on
// the engine's.
thread_local int first_runs = 0;
thread_local int second_runs = 0;
thread_local int region_backwards = 0;
thread_local const torch::autograd::Node* second_run_node = nullptr;

class OfNode {
 public:
  explicit OfNode(const torch::autograd::Node* node)
      : outer_(std::exchange(second_run_node, node)) {}
  ~OfNode() { second_run_node = outer_; }
  OfNode(const OfNode&) = delete;
  OfNode& operator=(const OfNode&) = delete;

 private:
  const torch::autograd::Node* outer_;
};

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
  // From when an output was asked for until backward comes to the region.
  struct SecondRun {
    TensorVector inputs;
    TensorVector outputs;
    edge_list edges;  // of outputs that want a gradient; others are invalid
  };
  std::optional<SecondRun> second_run;

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

edge_list edges_of(const TensorVector& outputs) {
  edge_list edges;
  for (const Tensor& output : outputs) {
    edges.push_back(output.requires_grad()
                        ? torch::autograd::impl::gradient_edge(output)
                        : torch::autograd::Edge());
  }
  return edges;
}

/// Backward through the second run: into the parameters, and to its inputs.
void run_backward(const edge_list& edges, const TensorVector& gradients) {
  edge_list roots;
  TensorVector seeds;
  for (size_t i = 0; i < edges.size(); ++i) {
    if (!edges[i].is_valid() || !gradients[i].defined()) continue;
    roots.push_back(edges[i]);
    seeds.push_back(gradients[i]);
  }
  if (roots.empty()) return;
  const Inside inside(region_backwards);
  torch::autograd::Engine::get_default_engine().execute(
      roots, seeds, /*keep_graph=*/false, /*create_graph=*/false,
      /*accumulate_grad=*/true);
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
    ensure_second_run(*context, torch::autograd::get_current_node().get());
    auto [inputs, outputs, edges] =
        *std::exchange(call_of(*context)->second_run, std::nullopt);
    outputs.clear();  // their memory is the graph's, where it keeps any
    run_backward(edges, gradients);
    TensorVector results = {Tensor()};
    for (const Tensor& input : inputs) results.push_back(input.grad());
    results.emplace_back();
    return results;
  }

  static c10::intrusive_ptr<Call> call_of(AutogradContext& context) {
    return c10::static_intrusive_pointer_cast<Call>(
        context.saved_data["call"].toCapsule());
  }

  static void ensure_second_run(AutogradContext& context,
                                const torch::autograd::Node* node) {
    const auto call = call_of(context);
    if (call->second_run) return;
    const OfNode scope(node);
    TensorVector inputs = cut_off(context.get_saved_variables());
    TensorVector outputs = call->run_again(inputs);
    edge_list edges = edges_of(outputs);
    call->second_run = {std::move(inputs), std::move(outputs),
                        std::move(edges)};
  }
};

using RecomputeNode = torch::autograd::CppNode<Recompute>;

/// Output i of the second run of `node`, which holds it no longer.
Tensor output_again(RecomputeNode& node, size_t i) {
  check_backward();
  Recompute::ensure_second_run(node.ctx_, &node);
  auto& outputs = Recompute::call_of(node.ctx_)->second_run->outputs;
  return std::exchange(outputs.at(i), Tensor()).detach();
}

std::shared_ptr<torch::autograd::Node> node_of(const TensorVector& outputs) {
  for (const Tensor& output : outputs) {
    if (output.grad_fn()) return output.grad_fn();
  }
  return nullptr;
}

}  // namespace

bool in_first_run() { return first_runs > 0; }
bool in_second_run() { return second_runs > 0; }
bool in_region_backward() { return region_backwards > 0; }
const torch::autograd::Node* node_of_second_run() { return second_run_node; }

TensorVector recompute(const Region& region, const TensorVector& inputs,
                       const RecomputeOptions& options) {
  if (!torch::GradMode::is_enabled()) return region(inputs);
  const TensorVector defined = only_defined(inputs);
  return Recompute::apply(at::zeros({}).requires_grad_(),
                          at::TensorList(defined),
                          c10::make_intrusive<Call>(region, inputs, options));
}

RecomputedOutputs recompute_outputs(const Region& region,
                                    const TensorVector& inputs,
                                    const RecomputeOptions& options) {
  RecomputedOutputs run = {recompute(region, inputs, options), {}};
  if (!torch::GradMode::is_enabled()) return run;
  run.again = [node = node_of(run.values)](size_t i) {
    return output_again(static_cast<RecomputeNode&>(*node), i);
  };
  return run;
}

}  // namespace tessera
