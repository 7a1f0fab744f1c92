// Several linear layers of one input, as a query, key and value have.
//
//   auto qkv = linear_each(x, {q_proj->weight, k_proj->weight,
//   v_proj->weight});
//
// The gradient of x is summed inside of the matrix products, each of which adds
// to what is there: separate layers would leave as many gradients of x, which
// autograd then adds up in passes of their own. It is also rounded less often.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera {

/// x * weight^T for each weight. x: [..., D], cast to the weights' dtype;
/// weights: [D_i, D], maybe full parameters of fully_shard. Results: [...,
/// D_i]. Keeps x and the weights for backward. Errors: InvalidArgument for
/// other shapes, unlike dtypes or no weight;
///         Unsupported in a backward with create_graph.
[[nodiscard]] std::vector<at::Tensor> linear_each(
    const at::Tensor& x, const std::vector<at::Tensor>& weights);

}  // namespace tessera
