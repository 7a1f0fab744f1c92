// The backward pass that is running on this thread: its end, and its kind.
#pragma once

#include <functional>

namespace tessera {

/// Calls `finish`, whose errors the caller of backward() gets, when the engine
/// has run all of the pass, or `fail` when an error ended it before. Called
/// inside of a backward pass; of one in another, it is the inner one's end.
void at_backward_end(std::function<void()> finish, std::function<void()> fail);

/// Whether it asks for gradients by name (torch::autograd::grad, or inputs of
/// backward). Called inside of a backward pass, also by a hook of a tensor
/// whose gradient is asked for.
[[nodiscard]] bool backward_asks_by_name();

}  // namespace tessera
