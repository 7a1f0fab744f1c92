// An activation that has no memory between forward and backward: cheaper than a
// recomputed region where one value is large and quick to compute.
//
//   Tensor y = swiglu(gate, up);
//   Tensor z = down_proj(y);          // autograd saves y for the weight's
//   gradient free_until_backward(y, {z}, [=] { return swiglu(gate, up); });
//
// The product itself is not computed again, as it would be in a region.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tessera {

/// Takes the memory of `value` away now. `again` is called, without grad mode,
/// when the gradient of the first of `users` has come, and its result, of the
/// same size and dtype, becomes the memory of `value`. All that autograd saved
/// `value` for must be behind `users`; nothing may read it in between. Does
/// nothing where no user is part of a graph.
/// Errors: InvalidArgument for a `value` that is not contiguous or not the
/// whole
///         of its storage; in backward, InvalidState for a result of another
///         size.
void free_until_backward(const at::Tensor& value,
                         const std::vector<at::Tensor>& users,
                         std::function<at::Tensor()> again);

}  // namespace tessera
