// Activations that lie in host memory between forward and backward: memory of
// the device for its link to the host, instead of for time as with recompute.
//
//   HostOffload offload;  // lives with the model
//
//   // in forward, when nothing of it will read gate and up any more:
//   offload.keep({gate, up}, {out});
//   // before the loss:
//   offload.end_forward(hidden);
//
// Copies go on a stream of their own beside the compute, to pinned memory that
// is kept for the next step, and come back one `keep` ahead: when backward has
// come to what was kept last, what was kept before that is on its way. A GPU
// copies some 50 GB/s each way, so spread what is kept over forward.
//
// A step that does this can be captured in a CUDA graph, after one that was not
// (pinned memory cannot be had in a capture). The object must outlive the
// graph, and no later step outside of it uses the same host memory.
//
// On a CPU values are copied as well, so that a configuration can be tried;
// nothing is gained there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace tessera {

namespace internal {
class HostSlots;
class KeptOnHost;
}  // namespace internal

class HostOffload {
 public:
  HostOffload();

  /// Copies `values` out, takes their memory when three more have been kept
  /// (offload_timeline.h), and has it back when the gradient of the first of
  /// `users` comes. All that autograd saved them for must be behind `users`;
  /// nothing else may read or write them from here on. Does nothing where no
  /// user is part of a graph, and in the second run of a recomputed region,
  /// whose backward comes at once. Errors: InvalidArgument for a value that is
  /// not contiguous or not the
  ///         whole of its storage, or on another device than the first;
  ///         c10::Error when there is not so much host memory.
  void keep(const std::vector<at::Tensor>& values,
            const std::vector<at::Tensor>& users);

  /// Nothing that was kept has memory on the device behind this. What was kept
  /// last starts to come back when the gradient of `output` comes.
  void end_forward(const at::Tensor& output);

  /// Pinned so far.
  [[nodiscard]] int64_t host_bytes() const;

 private:
  /// Until `most` are left that have memory on the device.
  void settle(size_t most);

  std::shared_ptr<internal::HostSlots> slots_;
  // Graphs own them, through hooks.
  std::deque<std::weak_ptr<internal::KeptOnHost>> under_way_;
  std::weak_ptr<internal::KeptOnHost> last_;
};

}  // namespace tessera
