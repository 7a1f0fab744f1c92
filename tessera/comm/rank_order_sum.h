// Combines what the ranks sent, always in the order of ranks 0, 1, 2, ...
//
// So the result depends on the values alone: not on which message came first,
// on the backend, or on the number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"

namespace tessera {

/// output = pieces[0] op pieces[1] op ..., all of one shape; `op` is sum, min or
/// max. `output` may be one of the pieces.
///
/// All are of one dtype, but for sums of bfloat16 and half: these are taken in
/// float32 and rounded once, at the end, or not at all, where `output` is
/// float32.
void combine_in_rank_order(const at::Tensor& output,
                           const std::vector<at::Tensor>& pieces, ReduceOp op);

}  // namespace tessera
