// The state of a model and its optimizers as dicts, by the names and with the
// options of PyTorch's get_state_dict.
//
//   // The weights, whole, in rank 0's host memory:
//   const StateDict full = get_model_state_dict(
//       *model, {.full_state_dict = true, .cpu_offload = true});
//   if (world.rank() == 0) {
//     safetensors::save("weights.safetensors", named_tensors(full));
//   }
//
// Without full_state_dict a dict holds this rank's parts, without any
// communication, and shares memory with the model: it follows training.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/state/state_dict.h"
#include "tessera/state/state_dict_options.h"

namespace tessera {

using Optimizers = std::vector<torch::optim::Optimizer*>;

/// Parameters and buffers by their full names, paths of one step. Collective
/// with full_state_dict.
/// Errors: InvalidArgument for options that exclude each other, submodules that
///         the model does not have, and a model without any state; InvalidState
///         for one on the meta device. With full_state_dict the same on all
///         ranks.
[[nodiscard]] StateDict get_model_state_dict(
    torch::nn::Module& model, const StateDictOptions& options = {});

/// "state" and "param_groups", as `optimizer_state` has them, of several
/// optimizers together; or flattened. Collective with full_state_dict.
///
/// Nothing is stepped to make state: what never stepped has zeros at step 0.
/// Errors: as above, and Unsupported for an unknown optimizer.
[[nodiscard]] StateDict get_optimizer_state_dict(
    torch::nn::Module& model, const Optimizers& optimizers,
    const StateDictOptions& options = {});
[[nodiscard]] StateDict get_optimizer_state_dict(
    torch::nn::Module& model, torch::optim::Optimizer& optimizer,
    const StateDictOptions& options = {});

/// Both: the model's, then the optimizers'.
[[nodiscard]] std::pair<StateDict, StateDict> get_state_dict(
    torch::nn::Module& model, const Optimizers& optimizers,
    const StateDictOptions& options = {});

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The tensors of a dict by their keys; values are left out.
/// Errors: InvalidArgument for a tensor of which the dict has a part only.
[[nodiscard]] NamedTensors named_tensors(const StateDict& dict);

/// A dict of whole tensors, to be set with full_state_dict.
[[nodiscard]] StateDict dict_of(const NamedTensors& tensors);

}  // namespace tessera
