// One AdamW update of a range of floats in one pass over memory.
//
// What LibTorch's fused kernel does, and on the way: the gradient is multiplied
// by a factor (of clipping) as it is read, and the new parameter is written a
// second time in the dtype that gathers send.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera {

/// Of one size and strides, on one device; all but the copy float.
struct AdamWTensors {
  at::Tensor parameter;
  at::Tensor gradient;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor max_exp_avg_sq;  // undefined: no amsgrad
  at::Tensor copy;            // bfloat16 or half, or undefined
  // 0-dim, float, on that device.
  at::Tensor step;
  at::Tensor rate;
  at::Tensor skip;    // not 0: nothing is changed; undefined: 0
  at::Tensor factor;  // of the gradient; undefined: 1
};

struct AdamWNumbers {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};

/// Updates parameter, moments and copy. False, and nothing done, where there is
/// no kernel: other devices than CUDA, builds without it, other dtypes than
/// float, tensors with holes or unlike strides, and a copy that is not
/// contiguous.
[[nodiscard]] bool adamw_in_one_pass(const AdamWTensors& tensors,
                                     const AdamWNumbers& numbers);

}  // namespace tessera
