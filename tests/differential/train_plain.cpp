#include <torch/nn/utils/clip_grad.h>

#include "tessera/module/traversal.h"
#include "tests/differential/batches.h"
#include "tests/differential/outcome.h"
#include "tests/differential/train.h"
#include "tests/differential/values.h"

namespace differential {

using torch::Tensor;

namespace {

struct Plain {
  const Json& test_case;
  int num_ranks = test_case["world"];
  std::shared_ptr<Node> model = make_model(test_case, Recompute::never);
  std::vector<Tensor> parameters;
  std::vector<std::string> names;

  explicit Plain(const Json& json) : test_case(json) {
    torch::nn::Module* const roots[] = {model.get()};
    const torch::NoGradGuard no_grad;
    for (const auto& found : tessera::find_parameters(roots)) {
      found.tensor.copy_(start(found.name, json["seed"], found.tensor.sizes()));
    }
    model->to(dtype_of(json["dtype"]));
    for (const auto& found : tessera::find_parameters(roots)) {
      found.tensor.set_requires_grad(!is_below(found.name, json["frozen"]));
      parameters.push_back(found.tensor);
      names.push_back(found.name);
    }
  }

  void backward(int step, Outcome& outcome) const {
    const double share = 1.0 / int(test_case["micro_batches"]) / num_ranks;
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto ran =
          run_rank(*model, test_case, step, rank, share, [](int) {});
      outcome.add_loss(step, ran.loss);
      if (rank == 0 && ran.input_gradient.defined()) {
        outcome.set_input_gradient(step, ran.input_gradient * num_ranks);
      }
    }
  }

  void evaluate_all(int step, Outcome& outcome) const {
    for (int rank = 0; rank < num_ranks; ++rank) {
      outcome.add_evaluation(
          step, evaluate(*model, test_case, step, rank) / num_ranks);
    }
  }
};

}  // namespace

Json train_plain(const Json& test_case) {
  const Plain plain(test_case);
  const int steps = test_case["steps"];
  Json options = test_case["optimizer"];
  if (options["name"] == "fused_adamw") options["name"] = "adamw";
  const auto optimizer = make_optimizer(options, plain.parameters);
  Outcome outcome(1, steps);
  for (int step = 0; step < steps; ++step) {
    apply_freezing(test_case, step, plain.names, plain.parameters);
    plain.backward(step, outcome);
    for (size_t i = 0; i < plain.names.size(); ++i) {
      outcome.add_gradient(step, plain.names[i], plain.parameters[i].grad());
    }
    outcome.set_norm(step, torch::nn::utils::clip_grad_norm_(
                               plain.parameters, max_norm_of(test_case),
                               norm_type_of(test_case)));
    optimizer->step();
    optimizer->zero_grad(bool(test_case["set_to_none"]));
    if (test_case["evaluate"]) plain.evaluate_all(step, outcome);
  }
  for (size_t i = 0; i < plain.names.size(); ++i) {
    outcome.set_weight(plain.names[i], plain.parameters[i]);
  }
  return outcome.json();
}

}  // namespace differential
