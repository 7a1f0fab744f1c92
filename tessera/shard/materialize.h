// From a model on the meta device to one with weights.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tessera {

struct MaterializeOptions {
  // The same seed gives the same weights at any world size and mesh, bit for
  // bit.
  uint64_t seed = 0;
  // Where parameters that are not sharded (ignored, or of a plain module) and
  // buffers go. Unset: the mesh's device, or CPU.
  std::optional<c10::Device> device = {};
  // Called for each module that directly holds a parameter or buffer without
  // data, with its name, after its own initialiser (if it has one): sets what
  // it likes, seeing whole tensors.
  std::function<void(torch::nn::Module&, const std::string&)> init = {};
};

/// Gives `model`'s meta parameters and buffers their first values, one unit at
/// a time: whole in the master's dtype, through each module's own initialiser
/// (a table for torch::nn, `Initializable` for others, or `options.init`); then
/// this rank's part stays. Every parameter of a unit that has a meta parameter
/// is initialised anew.
///
/// Memory: this rank's shards and one unit.
/// Errors: InvalidState with the name of a parameter or buffer that nothing has
///         initialised.
void materialize(torch::nn::Module& model,
                 const MaterializeOptions& options = {});

}  // namespace tessera
