#include "examples/train_text/ranks.h"

#include "tessera/comm/communicator.h"

namespace train_text {

at::Tensor sum_over_ranks(const at::Tensor& values,
                          const tessera::DeviceMesh& mesh) {
  if (mesh.numel() == 1) {
    return values.cpu();
  }
  const at::Tensor sum = values.to(mesh.device()).clone();
  mesh.communicator("control")
      ->all_reduce(sum, tessera::ReduceOp::sum, {.phase = "metrics"})
      .wait();
  return sum.cpu();
}

}  // namespace train_text
