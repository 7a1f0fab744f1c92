// A copy of tensors in host memory, made beside the steps of a training loop.
//
//   compute | step |.........| forward | backward | update |
//   copies         |  copy to pinned memory  |    ^ block_later_work
//   files                                    | write ...
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "tessera/device/stream.h"

namespace tessera::checkpoint {

/// One copy at a time; the memory is kept for the next.
class HostCopy {
 public:
  /// Begins to copy `sources`, after the work that their device has now, and
  /// returns at once. Those on a GPU, all on the same one, are copied on a
  /// stream of their own; those in host memory by the first thread that calls
  /// `wait` or `block_later_work`.
  /// Returns: contiguous copies in the same order, whole after `wait`, and
  ///          valid until the next `begin`.
  [[nodiscard]] std::vector<at::Tensor> begin(
      const std::vector<at::Tensor>& sources);

  /// Later work of the current stream waits for the copies. This thread waits
  /// for those of host memory only.
  void block_later_work();

  /// This thread waits for the copies. It may be another one than that which
  /// began them, which then does not begin the next; or several.
  void wait();

 private:
  struct OnHost {
    at::Tensor copy;
    at::Tensor source;
  };

  void reserve(int64_t num_bytes, c10::Device device);
  void copy_on_host();

  at::Tensor bytes_;                   // all copies, end to end
  std::mutex mutex_;                   // of the two lists
  std::vector<OnHost> on_host_;        // not copied yet
  std::vector<at::Tensor> on_device_;  // alive until they are copied
  std::optional<c10::Stream> stream_;  // of the copies; none on CPU
  StreamEvent copied_;
};

}  // namespace tessera::checkpoint
