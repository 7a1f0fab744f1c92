// A copy of tensors in host memory, made beside the steps of a training loop.
//
//   compute | step |.........| forward | backward | update |
//   copies         |  copy to pinned memory  |    ^ block_later_work
//   files                                    | write ...
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/device/stream.h"

namespace tessera::checkpoint {

/// One copy at a time; the memory is kept for the next.
class HostCopy {
 public:
  /// Begins to copy `sources`, after the work that their device has now. Those
  /// on a GPU are copied on a stream of their own, and this returns at once.
  /// All of a GPU are on the same one. Returns: contiguous copies in the same
  /// order, whole after `wait`, and valid
  ///          until the next `begin`.
  [[nodiscard]] std::vector<at::Tensor> begin(
      const std::vector<at::Tensor>& sources);

  /// Later work of the current stream waits for the copies; this thread does
  /// not.
  void block_later_work();

  /// This thread waits for the copies. It may be another one than that which
  /// began them, which then does not begin the next.
  void wait();

 private:
  void reserve(int64_t num_bytes, c10::Device device);

  at::Tensor bytes_;                   // all copies, end to end
  std::vector<at::Tensor> sources_;    // alive until they are copied
  std::optional<c10::Stream> stream_;  // of the copies; none on CPU
  StreamEvent copied_;
};

}  // namespace tessera::checkpoint
