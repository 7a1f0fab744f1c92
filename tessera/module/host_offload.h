// Activations that lie in host memory between forward and backward: memory of
// the device for its link to the host, instead of for time as with recompute.
//
//   HostOffload offload(3);  // lives with the model
//
//   for (auto& block : blocks) {
//     x = block(x);  // calls offload.keep({gate, up}, {out}) at its end
//     offload.end_part(x);
//   }
//   offload.end_forward(x);  // before the loss
//
// Copies go on a stream of their own beside the compute, to pinned memory that
// is kept for the next step, and come back two parts ahead: when backward comes
// to part i, what part i - 2 has kept starts its way. A GPU copies some 50 GB/s
// each way, so spread what is kept over forward.
//
// When a copy is through is reckoned, not asked: the host is far ahead of the
// device, and a captured step cannot ask. Memory goes when forward is through
// with as many parts as the copies up to there take (CopySchedule); where they
// take longer, the compute waits for them.
//
// A step that does this can be captured in a CUDA graph, after one that was not
// (pinned memory cannot be had in a capture). The object must outlive the
// graph, and while the graph lives no step outside of it uses the same host
// memory.
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

#include "tessera/module/offload_timeline.h"

namespace tessera {

namespace internal {
class HostSlots;
class KeptOnHost;
}  // namespace internal

class HostOffload {
 public:
  /// parts_of_a_copy: how many parts of the model forward is through with while
  /// what one part keeps is copied.
  explicit HostOffload(double parts_of_a_copy = 3);

  /// Copies `values` out, takes their memory at the end of one of the next
  /// parts, and has it back when the gradient of the first of `users` comes.
  /// All that autograd saved them for must be behind `users`; nothing else may
  /// read or write them from here on. Does nothing where no user is part of a
  /// graph, and in the second run of a recomputed region, whose backward comes
  /// at once.
  ///
  /// Errors: InvalidArgument for a value that is not contiguous, not the whole
  ///         of its storage, or on another device than the first; InvalidState
  ///         in a capture for which no host memory is left; c10::Error when
  ///         there is not so much host memory.
  void keep(const std::vector<at::Tensor>& values,
            const std::vector<at::Tensor>& users);

  /// A part of the model is through: copies that are, too, have no more memory
  /// on the device. What was kept two parts before starts to come back when the
  /// gradient of its `output` comes.
  void end_part(const at::Tensor& output);

  /// Nothing that was kept has memory on the device behind this. What is not
  /// yet said to come back starts when the gradient of `output` comes.
  void end_forward(const at::Tensor& output);

  /// Pinned so far.
  [[nodiscard]] int64_t host_bytes() const;

 private:
  struct Recent {
    size_t part;
    std::weak_ptr<internal::KeptOnHost> kept;
  };

  struct UnderWay {
    double end;  // of the copy: CopySchedule
    std::weak_ptr<internal::KeptOnHost> kept;
  };

  /// Copies that end until then.
  void settle(double end);
  /// What was kept `parts` or more before now, when the gradient comes.
  void come_back(const at::Tensor& output, size_t parts);

  std::shared_ptr<internal::HostSlots> slots_;
  // Graphs own them, through hooks.
  std::deque<UnderWay> under_way_;
  CopySchedule schedule_;
  std::deque<Recent> recent_;  // and do not come back yet
  size_t part_ = 0;
};

}  // namespace tessera
