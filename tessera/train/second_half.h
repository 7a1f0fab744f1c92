// What a block of the Llama type does behind its attention, in one function
// that computes most of it again in backward:
//
//   sum = residual + mixed * output^T
//   branch = (silu(norm * gate^T) * (norm * up^T)) * down^T,  norm of the sum
//
// One function and not a recomputed region, so that the widest values of a
// model are its own: backward writes the gradients of gate and up over them,
// and their product over its gradient, in one pass of one kernel. A region has
// five values of that width at once, this has three.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::train {

/// What it keeps for backward, besides its inputs.
enum class SecondHalfKeeps : uint8_t {
  nothing,
  sum_gate_and_up,  // all but the norm and what gate and up make
};

struct SecondHalfWeights {
  at::Tensor output;    // [D, D']
  at::Tensor norm;      // [D]
  at::Tensor gate, up;  // [F, D]
  at::Tensor down;      // [D, F]
};

struct SumAndBranch {
  at::Tensor sum;     // the residual stream
  at::Tensor branch;  // still to be added to it
  // What sum_gate_and_up keeps beside `sum`, to be offloaded.
  std::vector<at::Tensor> kept;
};

/// residual: [..., D]; mixed: [..., D'], what attention made of the heads. All
/// of one dtype. Both results: [..., D].
/// Errors: in backward, Unsupported with create_graph.
[[nodiscard]] SumAndBranch second_half(const at::Tensor& residual,
                                       const at::Tensor& mixed,
                                       const SecondHalfWeights& weights,
                                       double eps, SecondHalfKeeps keeps);

}  // namespace tessera::train
