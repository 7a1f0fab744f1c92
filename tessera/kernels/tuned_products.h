// Matrix products of 16-bit tensors on a GPU, by the fastest of the algorithms
// that cuBLASLt proposes.
//
// Which one cuBLAS takes on its own is a guess from the sizes. On an H200 up to
// 14 % faster ones are on its own list (benchmarks/results/h200.md), so the
// first product of each kind, by sizes, layout and dtype, times all of them and
// later ones keep to the winner. Algorithms differ in the order in which they
// add up: where LibTorch's deterministic algorithms are asked for
// (at::globalContext().setDeterministicAlgorithms), cuBLAS's own is taken, for
// timings differ from run to run.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// out = a * b + beta * out. a: [M, K]; b: [K, N]; out: [M, N]; beta: 0 or 1.
/// Whatever cuBLASLt does not take, and what is small, goes to at::mm.
/// The first of a kind waits for the device, but never within a capture of a
/// graph, where a kind not seen before takes cuBLAS's own choice.
void tuned_product(const at::Tensor& out, const at::Tensor& a,
                   const at::Tensor& b, double beta);

}  // namespace tessera
