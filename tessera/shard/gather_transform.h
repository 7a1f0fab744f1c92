// What travels in a gather in place of the parameters themselves: FSDP2's
// tensor extensions, for one flat buffer at a time.
//
//   rank's part (master dtype) --pre_gather--> tensors that travel
//   all ranks' tensors         --post_gather--> full parameters (compute dtype)
//
// Only what forward and backward gather goes this way; FullParameters, state
// dicts and checkpoints see the masters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

class GatherTransform {
 public:
  virtual ~GatherTransform() = default;

  /// Whether `parameter` (whole, perhaps on meta) is to travel this way. By
  /// default those of two and more dims.
  [[nodiscard]] virtual bool applies_to(const at::Tensor& parameter) const {
    return parameter.dim() >= 2;
  }

  /// What travels of this rank's `part`: 1-D, whole rows of `row_numel`
  /// elements. Returns 1-D tensors; their sizes and dtypes follow from the
  /// part's size and dtype alone, so that they are the same on all ranks.
  [[nodiscard]] virtual std::vector<at::Tensor> pre_gather(
      const at::Tensor& part, int64_t row_numel) const = 0;

  /// Fills `full`, 1-D, all ranks' parts in order, from what all ranks sent: of
  /// the i-th tensor of `pre_gather`, gathered[i] is all ranks' one after the
  /// other.
  virtual void post_gather(std::span<const at::Tensor> gathered,
                           int64_t row_numel, const at::Tensor& full) const = 0;
};

}  // namespace tessera
