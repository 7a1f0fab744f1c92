// The optimizers that are saved: their options and their state by the names
// that Python gives them.
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/state/peers.h"
#include "tessera/state/value.h"

namespace tessera {

/// An optimizer's options as the fields of a Python parameter group, "params"
/// apart. Errors: Unsupported for an optimizer that is not known here.
[[nodiscard]] Value::Pairs group_fields(
    const torch::optim::OptimizerParamGroup& group);

/// Sets the options that are named in `fields`; others stay.
void set_group_fields(torch::optim::OptimizerParamGroup& group,
                      const Value& fields);

using NamedState = std::map<std::string, at::Tensor>;  // "exp_avg", ...

/// The names of the state tensors that the group's parameters have.
[[nodiscard]] std::vector<std::string> state_names(
    const torch::optim::OptimizerParamGroup& group);

/// Whether the state of `parameter` is this rank's to save and load. No where a
/// ZeroRedundancyOptimizer has given it to another rank.
[[nodiscard]] bool is_state_here(const torch::optim::Optimizer& optimizer,
                                 const at::Tensor& parameter);

/// The ranks among which a ZeroRedundancyOptimizer has divided its state;
/// nothing for other optimizers.
[[nodiscard]] std::optional<Peers> peers_of(
    const torch::optim::Optimizer& optimizer);

/// What the optimizer holds for `parameter`: of this rank's part, sharing
/// memory except for "step", a 0-dim fp32 tensor on the CPU. Empty before its
/// first step.
[[nodiscard]] NamedState state_of_parameter(torch::optim::Optimizer& optimizer,
                                            const at::Tensor& parameter);

/// Gives it to the optimizer, which keeps, or copies, the tensors.
void set_state_of_parameter(torch::optim::Optimizer& optimizer,
                            const torch::optim::OptimizerParamGroup& group,
                            const at::Tensor& parameter, NamedState state);

}  // namespace tessera
