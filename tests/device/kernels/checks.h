// The parts of device_kernels. Each prints a line for each thing that it looks
// at, and returns how many were not as they should be.
#pragma once

namespace device_kernels {

/// Forward and backward of every function, over odd sizes and all dtypes,
/// against the same in double.
int check_agreement();

/// A forward and backward captured in a CUDA graph gives the bits of an eager
/// one, and so does a second run.
int check_graph();

/// The one pass of AdamW, over odd sizes and kinds, against LibTorch's kernel
/// and passes of its own for clipping and the copy.
int check_adamw();

/// The 2-norms of tensors of odd sizes and all dtypes against double; the same
/// bits alone, beside others and where they begin unaligned.
int check_two_norms();

/// Sums and casts of stretches, as gathers and reduce-scatters between GPUs have
/// them, against LibTorch's.
int check_peers();

/// Matrix products whose algorithm is chosen by timing, of all layouts, against
/// double; SwiGLU's backward in place against the one that is not.
int check_products();

/// Times beside LibTorch's own operators.
void measure_speed();

}  // namespace device_kernels
