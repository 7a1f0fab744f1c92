// Gives a model and its optimizers a state, by the names and with the options
// of PyTorch's set_state_dict.
//
//   NamedTensors weights;                       // rank 0 alone reads them
//   if (world.rank() == 0) weights = safetensors::load("weights.safetensors");
//   set_model_state_dict(*model, dict_of(weights),
//                        {.full_state_dict = true,
//                         .broadcast_from_rank0 = true});
//
// Collective, all of them, when the model is cut over several ranks. Everything
// is compared before anything is changed. Elements are converted to the dtype
// that is there.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tessera/state/get_state_dict.h"
#include "tessera/state/key_report.h"
#include "tessera/state/state_dict.h"
#include "tessera/state/state_dict_options.h"

namespace tessera {

/// `dict`: this rank's parts, cut as the model's are; or with full_state_dict
/// whole tensors, the same on every rank (with broadcast_from_rank0 rank 0's).
///
/// Memory beside the model, with full_state_dict: 64 MiB, or one row of a
/// tensor. With broadcast_from_rank0 the other ranks need no tensors at all.
/// Returns: keys that were left as they are; none unless `strict` is false.
/// Errors:  InvalidArgument with all keys that are missing or unexpected, and
///          the first of another size, cut, or values than on rank 0; the same
///          on every rank.
KeyReport set_model_state_dict(torch::nn::Module& model, const StateDict& dict,
                               const StateDictOptions& options = {});

/// `dict`: nested or flattened, of all optimizers together. Makes the state
/// that is not there yet, and sets the options of the groups.
///
/// Missing is a parameter that needs a gradient and has no state in `dict`, and
/// one without group; unexpected is what belongs to no parameter of these
/// optimizers.
/// Errors: as above, and for parameters that share a group here and had
///         different options; Unsupported for an unknown optimizer.
KeyReport set_optimizer_state_dict(torch::nn::Module& model,
                                   const Optimizers& optimizers,
                                   const StateDict& dict,
                                   const StateDictOptions& options = {});
KeyReport set_optimizer_state_dict(torch::nn::Module& model,
                                   torch::optim::Optimizer& optimizer,
                                   const StateDict& dict,
                                   const StateDictOptions& options = {});

struct StateDicts {
  const StateDict& model;
  const StateDict& optimizer;
};

/// Both. Returns what set_model_state_dict does.
KeyReport set_state_dict(torch::nn::Module& model, const Optimizers& optimizers,
                         const StateDicts& dicts,
                         const StateDictOptions& options = {});

}  // namespace tessera
