// A region of the forward pass that keeps only its inputs, and runs once more
// in backward: memory for time.
//
//   Tensor y = recompute([&](const Tensor& x) { return block->forward(x); },
//   x);
//
// Whatever the region makes inside is freed when it ends. In backward it runs a
// second time with the same inputs, the same random numbers and the same
// autocast settings, and its gradients are taken there. The second run gathers
// and frees units of fully_shard as a forward does: a region of several units
// never holds all of them. Regions may lie inside regions.
//
// What the region reads beside its inputs must be the same in both runs.
// Backward must be backward(): gradients of parameters cannot be asked for by
// name (torch::autograd::grad), and not differentiated again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace tessera {

using TensorVector = std::vector<at::Tensor>;

/// Its inputs may be undefined, its outputs may not.
using Region = std::function<TensorVector(const TensorVector&)>;

struct RecomputeOptions {
  enum class Random {
    kept,  // both runs draw the same numbers, on CPU and the inputs' devices
    none   // the region draws none: no state is kept, and the region can be
           // captured in a CUDA graph
  };
  Random random = Random::kept;
};

/// What `region(inputs)` returns. Without grad mode, it is simply called.
/// Errors: InvalidArgument for an undefined output; in backward, InvalidState
/// when gradients are asked for by name or the
///         second run returns other tensors than the first; Unsupported with
///         create_graph; and whatever the region throws.
[[nodiscard]] TensorVector recompute(const Region& region,
                                     const TensorVector& inputs,
                                     const RecomputeOptions& options = {});

/// What recompute() returns, and a way to lose some of it until backward:
///
///   auto run = recompute_outputs(region, {x});
///   Tensor out = down_proj(run.values[0]);
///   free_until_backward(run.values[0], {out}, [=] { return run.again(0); });
///
/// So the last product needs not be in the region, and is not computed twice.
struct RecomputedOutputs {
  TensorVector values;
  /// For a backward that comes to the users of value i before it comes to the
  /// region: runs it, unless another value was asked for before, and returns
  /// value i of that run. Once for each value and backward.
  std::function<at::Tensor(size_t i)> again;
};
[[nodiscard]] RecomputedOutputs recompute_outputs(
    const Region& region, const TensorVector& inputs,
    const RecomputeOptions& options = {});

/// The same for a function of tensors that returns a tensor or a vector of
/// them.
template <class Function, class... Inputs>
requires(std::is_invocable_v<Function&, const Inputs&...> &&
         (std::is_same_v<std::decay_t<Inputs>, at::Tensor> && ...))
    [[nodiscard]] auto recompute(Function function, const Inputs&... inputs) {
  using Result = std::invoke_result_t<Function&, const Inputs&...>;
  const Region region =
      [function](const TensorVector& in) mutable -> TensorVector {
    auto result = [&]<size_t... i>(std::index_sequence<i...>) {
      return function(in[i]...);
    }
    (std::index_sequence_for<Inputs...>());
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      return {std::move(result)};
    } else {
      return result;
    }
  };
  auto results = recompute(region, TensorVector{inputs...});
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return at::Tensor(results.at(0));
  } else {
    return results;
  }
}

/// Whether this thread is in the first run of a region that backward will run
/// again: a forward of training, though grad mode is off.
[[nodiscard]] bool in_first_run();

/// Whether this thread is in the second run of a region: a forward, though
/// backward is under way.
[[nodiscard]] bool in_second_run();

/// Whether this thread is in the backward of a region: one inside of another.
[[nodiscard]] bool in_region_backward();

/// The node of that region in the graph of its first run; null outside of one.
[[nodiscard]] const torch::autograd::Node* node_of_second_run();

}  // namespace tessera
