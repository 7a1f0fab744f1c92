// A gather whose values travel in another form (gather_transform.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "tessera/shard/group_plan.h"

namespace tessera {

class TransformedGather {
 public:
  /// Makes what travels of the flat master, and the calls that gather it; with
  /// one rank there are none.
  [[nodiscard]] std::vector<GatherCall> begin(const GroupPlan& plan,
                                              const at::Tensor& master);
  [[nodiscard]] bool under_way() const { return !wire_.empty(); }
  /// Fills the flat full parameters from what the calls have brought.
  void finish(const GroupPlan& plan, const at::Tensor& full_flat);

 private:
  // Each buffer's gathered tensors one after another, and how many it has.
  std::vector<at::Tensor> wire_;
  std::vector<size_t> counts_;
};

}  // namespace tessera
