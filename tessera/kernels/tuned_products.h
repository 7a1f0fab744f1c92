// Matrix products of 16-bit tensors on a GPU, by one of the algorithms that
// cuBLASLt proposes where it is clearly faster than the one that cuBLAS takes.
//
// cuBLAS guesses from the sizes. On an H200 some others of its list are up to
// 14 % faster (benchmarks/results/h200.md), so the first product of each kind,
// by sizes, layout and dtype, times all of them; later ones of the kind take
// what was chosen then. Algorithms differ in the order in which they add up:
// where LibTorch's deterministic algorithms are asked for
// (at::globalContext().setDeterministicAlgorithms), cuBLAS's own is taken, for
// timings differ from run to run.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// out = a * b + beta * out. a: [M, K]; b: [K, N]; out: [M, N]; beta: 0 or 1.
/// Whatever cuBLASLt does not take, and what is small, goes to at::mm.
/// The first of a kind waits for the device, but never within a capture of a
/// graph, where a kind not seen before takes cuBLAS's own choice, as do all
/// kinds after the first 128.
void tuned_product(const at::Tensor& out, const at::Tensor& a,
                   const at::Tensor& b, double beta);

}  // namespace tessera
