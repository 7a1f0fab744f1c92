// Learning rates as tensors on the devices of the parameters.
//
// The fused kernels read them there, so a step that was captured in a CUDA
// graph follows a schedule: the tensor is written between replays.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace tessera {

class DeviceRates {
 public:
  /// The rate of parameter group `group` on `device`, 0-dim fp32: the same
  /// tensor in every step, and `rate` is written to it when it has changed.
  /// Errors: InvalidState during a capture, when it would have to be written.
  at::Tensor of(size_t group, c10::Device device, double rate);

  /// Writes `rate` to all tensors of `group`. Nothing waits.
  void set(size_t group, double rate);

 private:
  struct Rate {
    size_t group;
    at::Tensor tensor;
    double value;
  };
  static void write(Rate& rate, double value);

  std::vector<Rate> rates_;
};

}  // namespace tessera
