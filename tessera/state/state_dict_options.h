// How get_state_dict.h and set_state_dict.h give and take state. The names and
// defaults are those of PyTorch's StateDictOptions.
#pragma once

#include <torch/nn/module.h>

#include <vector>

#include "tessera/comm/world.h"

namespace tessera {

struct StateDictOptions {
  // get: whole plain tensors instead of each rank's parts, on every rank.
  // set: whole tensors are given, the same on every rank.
  bool full_state_dict = false;
  // get: copies in host memory. With full_state_dict rank 0 alone gets them,
  // the others an empty dict.
  bool cpu_offload = false;
  // get: without parameters that need no gradient.
  bool ignore_frozen_params = false;
  // get, with `submodules`: names as in the whole model, or as in the
  // submodule.
  bool keep_submodule_prefixes = true;
  // set: missing and unexpected keys are errors; otherwise they are reported.
  bool strict = true;
  // set: only rank 0 gives the (full) dict; the others may give an empty one.
  // Needs full_state_dict.
  bool broadcast_from_rank0 = false;
  // get: one entry of each parameter for each option of its group, which is
  // what pipelines need. set: both forms are taken.
  bool flatten_optimizer_state_dict = false;
  // get: of the model, only what is below these modules of it.
  std::vector<torch::nn::Module*> submodules = {};
  // The ranks that take part. Empty: those over which the model is cut, or this
  // process alone.
  World world = {};
};

}  // namespace tessera
