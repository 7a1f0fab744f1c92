// What all trainings of a case have in common: data, losses, optimizers.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/differential/model.h"

namespace differential {

[[nodiscard]] c10::ScalarType dtype_of(const Json& name);

/// Which data: forward passes of one backward count as micro-batches.
struct Turn {
  int step;
  int rank;
  int micro;
};

struct Pass {
  torch::Tensor input;
  torch::Tensor loss;  // mean over this rank's rows
};

/// One forward pass with its loss, in fp32.
[[nodiscard]] Pass forward(Node& model, const Json& test_case,
                           const Turn& turn);

/// All backward passes of one rank in one step, each loss multiplied by
/// `share`. `before(i)` is called before the i-th of them.
/// Returns the mean loss and the gradient of the first input, if asked for.
struct RankStep {
  double loss = 0;
  torch::Tensor input_gradient;
};
[[nodiscard]] RankStep run_rank(Node& model, const Json& test_case, int step,
                                int rank, double share,
                                const std::function<void(int)>& before);

[[nodiscard]] double evaluate(Node& model, const Json& test_case, int step,
                              int rank);

[[nodiscard]] std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Json& options, const std::vector<torch::Tensor>& parameters);

[[nodiscard]] double max_norm_of(const Json& test_case);
[[nodiscard]] double norm_type_of(const Json& test_case);

/// Freezes and unfreezes what the case says for the beginning of `step`.
void apply_freezing(const Json& test_case, int step,
                    const std::vector<std::string>& names,
                    const std::vector<torch::Tensor>& parameters);

/// Whether `name` is one of `prefixes`, or below one.
[[nodiscard]] bool is_below(const std::string& name, const Json& prefixes);

}  // namespace differential
