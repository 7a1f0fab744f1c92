#include "tests/differential/batches.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim.h>

#include "tessera/base/error.h"
#include "tessera/optim/adamw.h"
#include "tessera/shard/call.h"
#include "tests/differential/values.h"

namespace differential {

namespace F = torch::nn::functional;
using torch::Tensor;

namespace {

/// Inputs or targets: tokens, or floats of a last dim.
Tensor data(const Json& test_case, const char* what, const Turn& turn) {
  const Json& kind = test_case[what];
  const std::string name =
      tessera::str(what, "/", turn.step, "/", turn.rank, "/", turn.micro);
  const uint32_t seed = test_case["seed"];
  const int64_t rows = test_case["rows"], seq = test_case["seq"];
  if (kind.contains("vocab")) {
    return whole(name, seed, {rows, seq}, kind["vocab"]);
  }
  return uniform(name, seed, {rows, seq, int64_t(kind["dim"])});
}

Tensor loss_of(const Tensor& output, const Tensor& target) {
  const bool is_double = output.scalar_type() == torch::kDouble;
  const Tensor y = is_double ? output : output.to(torch::kFloat);
  if (target.is_floating_point()) return F::mse_loss(y, target.to(y.dtype()));
  return F::cross_entropy(y.flatten(0, 1), target.flatten());
}

torch::optim::AdamWOptions adamw_options(const Json& options) {
  return torch::optim::AdamWOptions(options["lr"])
      .eps(options["eps"])
      .weight_decay(options["weight_decay"]);
}

}  // namespace

c10::ScalarType dtype_of(const Json& name) {
  if (name == "bf16") return torch::kBFloat16;
  return name == "fp64" ? torch::kDouble : torch::kFloat;
}

Pass forward(Node& model, const Json& test_case, const Turn& turn) {
  Tensor x = data(test_case, "input", turn);
  if (x.is_floating_point()) x = x.to(dtype_of(test_case["dtype"]));
  x.set_requires_grad(bool(test_case["input_gradients"]));
  return {x,
          loss_of(tessera::call(&model, x), data(test_case, "target", turn))};
}

RankStep run_rank(Node& model, const Json& test_case, int step, int rank,
                  double share, const std::function<void(int)>& before) {
  const int backwards = test_case["micro_batches"];
  const int forwards = test_case["forwards"];
  RankStep result;
  for (int b = 0; b < backwards; ++b) {
    before(b);
    Tensor total = torch::zeros({});
    Tensor first_input;
    for (int f = 0; f < forwards; ++f) {
      const Pass pass =
          forward(model, test_case, {step, rank, b * forwards + f});
      if (f == 0) first_input = pass.input;
      total = total + pass.loss * (share / forwards);
    }
    total.backward();
    result.loss += total.item<double>();
    if (b == 0) result.input_gradient = first_input.grad();
  }
  return result;
}

double evaluate(Node& model, const Json& test_case, int step, int rank) {
  const torch::NoGradGuard no_grad;
  return forward(model, test_case, {step, rank, 0}).loss.item<double>();
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Json& options, const std::vector<Tensor>& parameters) {
  const std::string name = options["name"];
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(options["lr"])
                        .momentum(options["momentum"])
                        .nesterov(options["nesterov"])
                        .weight_decay(options["weight_decay"]));
  }
  if (name == "adam") {
    return std::make_unique<torch::optim::Adam>(
        parameters, torch::optim::AdamOptions(options["lr"])
                        .eps(options["eps"])
                        .weight_decay(options["weight_decay"]));
  }
  if (name == "fused_adamw") {
    return std::make_unique<tessera::AdamW>(parameters, adamw_options(options));
  }
  return std::make_unique<torch::optim::AdamW>(parameters,
                                               adamw_options(options));
}

double max_norm_of(const Json& test_case) {
  return test_case["max_norm"].is_null() ? INFINITY
                                         : double(test_case["max_norm"]);
}

double norm_type_of(const Json& test_case) {
  return test_case["norm_type"] == "inf" ? INFINITY
                                         : double(test_case["norm_type"]);
}

void apply_freezing(const Json& test_case, int step,
                    const std::vector<std::string>& names,
                    const std::vector<Tensor>& parameters) {
  for (const Json& change : test_case["freezing"]) {
    if (change[0] != step) continue;
    for (size_t i = 0; i < names.size(); ++i) {
      if (is_below(names[i], Json::array({change[1]}))) {
        parameters[i].set_requires_grad(bool(change[2]));
      }
    }
  }
}

bool is_below(const std::string& name, const Json& prefixes) {
  for (const std::string prefix : prefixes) {
    if (name == prefix || name.starts_with(prefix + ".")) return true;
  }
  return false;
}

}  // namespace differential
