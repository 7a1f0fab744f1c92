// From a module to the units that hold its parameters.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/shard/unit.h"

namespace tessera {

/// The unit behind a shard, or null for a plain tensor.
[[nodiscard]] std::shared_ptr<Unit> unit_of(const at::Tensor& shard);

/// The distinct units that hold parameters of `module` or below it, in order of
/// first parameter.
[[nodiscard]] std::vector<std::shared_ptr<Unit>> units_below(
    torch::nn::Module& module);

/// Those of them that `module` itself was given to.
[[nodiscard]] std::vector<std::shared_ptr<Unit>> units_of(
    torch::nn::Module& module);

/// Raises InvalidArgument when `module` is a part of a unit, which `function`
/// could only change as a whole.
void check_is_no_part(torch::nn::Module& module, const char* function);

}  // namespace tessera
