// The archives of LibTorch's optimizers as bytes, of any type of optimizer.
#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// What `optimizer` saves.
[[nodiscard]] std::string archive_of(const torch::optim::Optimizer& optimizer);

/// Has `optimizer` load what `archive_of` gave, its tensors on `device`;
/// without one, where they were.
void load_archive(torch::optim::Optimizer& optimizer, const std::string& bytes,
                  std::optional<c10::Device> device);

/// A copy of one parameter's state, its tensors on `device`.
[[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> copy_on(
    const torch::optim::OptimizerParamState& state, c10::Device device);

}  // namespace tessera
