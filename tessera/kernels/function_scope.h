// What the functions of this folder share when autograd calls them.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "tessera/base/error.h"

namespace tessera::internal {

/// The grad mode in which the user called. `Function::apply` turns it off, but
/// whatever watches operators (the gate of fully_shard) must still see whether
/// this is training or evaluation.
[[nodiscard]] inline bool records_graph() {
  return c10::GradMode::is_enabled();
}

/// Operators in its scope leave no graph, though grad mode is as given.
class ForwardScope {
 public:
  explicit ForwardScope(bool records_graph) : mode_(records_graph) {}

 private:
  torch::AutoGradMode mode_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

/// The same in a backward; raises where a gradient of the gradient is asked
/// for, which these functions do not have.
class BackwardScope {
 public:
  explicit BackwardScope(const char* function) {
    require<Unsupported>(!c10::GradMode::is_enabled(), [&] {
      return str(function,
                 ": its gradient cannot be differentiated again "
                 "(create_graph). Use LibTorch's own operators for that.");
    });
  }

 private:
  at::AutoDispatchBelowADInplaceOrView below_;
};

}  // namespace tessera::internal
