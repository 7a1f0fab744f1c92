// A hook for autograd's leaves that keeps the one that was there before.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>

namespace tessera {

/// Calls `then` when autograd has added a gradient to a parameter, after the
/// hook `before`, if there is one.
[[nodiscard]] std::unique_ptr<torch::autograd::PostAccumulateGradHook>
make_gradient_hook(
    std::function<void()> then,
    std::unique_ptr<torch::autograd::PostAccumulateGradHook> before);

}  // namespace tessera
