// A parameter or buffer and its name in the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace tessera {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

[[nodiscard]] inline std::vector<at::Tensor> tensors_of(
    const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

}  // namespace tessera
