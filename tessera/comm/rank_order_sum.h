// Combines what the ranks sent, always in the order of ranks 0, 1, 2, ...
//
// So the result depends on the values alone: not on which message came first,
// on the backend, or on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// output = pieces[0] op pieces[1] op ..., all of one shape and dtype; `op` is
/// sum, min or max.
///
/// The result has the dtype of the pieces. For bfloat16 and half, sums are
/// accumulated in float32 and rounded once, at the end.
/// `output` may be one of the pieces.
void combine_in_rank_order(const at::Tensor& output,
                           const std::vector<at::Tensor>& pieces, ReduceOp op);

}  // namespace tessera
