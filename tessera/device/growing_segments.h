// How LibTorch's allocator of a GPU takes memory from the driver.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tessera {

/// Lets the allocator's segments grow in place (LibTorch's
/// expandable_segments), so that what activations have left fits gradients of
/// other sizes: a training step of 3 billion parameters, of two ranks that
/// shared an H200, reserved 25.2 GiB so and 31.0 otherwise. For programs,
/// before their first tensors on `device`; memory taken before stays as it is.
/// Nothing where PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) says how the
/// allocator is set, on a CPU, and, with a word in the log, where the driver
/// cannot do it.
void prefer_growing_segments(c10::Device device);

/// While it lives, new memory is of segments that do not grow, whatever the
/// allocator is set to; then it is set as before.
class PlainSegments {
 public:
  PlainSegments();
  ~PlainSegments();
  PlainSegments(const PlainSegments&) = delete;
  PlainSegments& operator=(const PlainSegments&) = delete;

 private:
  const bool growing_;
  const std::string settings_;
};

}  // namespace tessera
