// The gradients of a group as backward computes them, until they are summed
// over the ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/shard/group_plan.h"

namespace tessera {

class HeldGradients {
 public:
  explicit HeldGradients(std::shared_ptr<const GroupPlan> plan);

  /// Adds a gradient of parameter `i` (whole, any dtype).
  void hold(size_t i, at::Tensor grad);
  [[nodiscard]] bool any() const { return num_held_ > 0; }
  [[nodiscard]] bool has(size_t i) const { return held_[i].defined(); }
  /// Brings them to the reduce dtype: they stay until a later backward reduces
  /// them.
  void settle();
  /// Whether some may be there that were settled: the same on all ranks, also
  /// on those that have none.
  [[nodiscard]] bool settled() const { return settled_; }
  void drop();

  /// Moves them to their places in `input` (1-D, the layout's full_numel, any
  /// dtype); zeros where there is none. None is left.
  void move_to(const at::Tensor& input);
  /// Gives them away as they are where they are contiguous and of `dtype`, else
  /// a copy; zeros where there is none. By their offsets in the full storage;
  /// those without elements are left out. None is left.
  [[nodiscard]] std::vector<InputPiece> take_pieces(c10::ScalarType dtype);

 private:
  std::shared_ptr<const GroupPlan> plan_;
  std::vector<at::Tensor> held_;
  size_t num_held_ = 0;
  bool settled_ = false;
};

}  // namespace tessera
