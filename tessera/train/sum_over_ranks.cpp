#include "tessera/train/sum_over_ranks.h"

#include "tessera/comm/communicator.h"

namespace tessera::train {

at::Tensor sum_over_ranks(const at::Tensor& values, const DeviceMesh& mesh) {
  const at::Tensor sum = values.to(mesh.device(), /*non_blocking=*/true,
                                   /*copy=*/true);
  if (mesh.numel() > 1) {
    mesh.communicator("control")
        ->all_reduce(sum, ReduceOp::sum, {.phase = "metrics"})
        .wait();
  }
  return sum;
}

}  // namespace tessera::train
