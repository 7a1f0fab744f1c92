// How a unit's buffers travel, for those who bring their own transport:
// compression, another library, memory that a network card knows.
//
//   struct Mine : AllGather {
//     Pending start(std::span<const GatherCall> calls, Communicator& over,
//                   const CallLabel& label) override { ... }
//   };
//   set_custom_all_gather(*block, std::make_shared<Mine>());
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <cstddef>
#include <span>

#include "tessera/comm/communicator.h"

namespace tessera {

class AllGather {
 public:
  virtual ~AllGather() = default;

  /// Memory for the full parameters, `bytes` of them. By default the device's
  /// allocator.
  virtual c10::DataPtr allocate(size_t bytes, c10::Device device) {
    return c10::GetAllocator(device.type())->allocate(bytes);
  }

  /// Fills each call's output from all ranks' inputs, in the order of the ranks
  /// of `over`. On CUDA the work goes to the current stream. An empty Pending
  /// says that all is done.
  virtual Pending start(std::span<const GatherCall> calls, Communicator& over,
                        const CallLabel& label) = 0;
};

class ReduceScatter {
 public:
  virtual ~ReduceScatter() = default;

  /// Memory for the whole gradients: 1-D, `numel` elements. By default the
  /// device's allocator.
  virtual at::Tensor allocate(int64_t numel, const at::TensorOptions& options);

  /// Sums each call's input over the ranks of `over` and leaves this rank's
  /// part in its output. Sums only: the caller divides.
  virtual Pending start(std::span<const ReduceCall> calls, Communicator& over,
                        const CallLabel& label) = 0;
};

}  // namespace tessera
