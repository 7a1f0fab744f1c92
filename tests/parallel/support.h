// A model under DistributedDataParallel beside the same in one process.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/distributed.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/parallel/distributed_data_parallel.h"
#include "tests/support/agreement.h"

namespace tessera::test {

/// Layers whose order of use is not that of registration:
///   x [*, 6] -> last: Linear(6, 5) -> middle: Linear(5, 7) -> first: Linear(7,
///   3)
struct ChainImpl : nn::Module {
  nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  ChainImpl() {
    first = register_module("first", nn::Linear(7, 3));
    middle = register_module("middle", nn::Linear(5, 7));
    last = register_module("last", nn::Linear(6, 5));
  }
  Tensor forward(const Tensor& x) {
    return first(torch::tanh(middle(torch::tanh(last(x)))));
  }
};
TORCH_MODULE(Chain);

inline Model make_chain() { return std::make_shared<ChainImpl>(); }
inline std::shared_ptr<ChainImpl> as_chain(const Model& model) {
  return std::dynamic_pointer_cast<ChainImpl>(model);
}

/// So small that nearly each parameter has a bucket of its own.
inline constexpr double kSmallBuckets = 1e-4;

inline Tensor batch(int rank, int step) {
  return noise(100 + 10 * rank + step, {4, 6});
}

/// Over the whole world.
inline DataParallelOptions options_over(const World& world,
                                        DataParallelOptions options = {}) {
  options.mesh = init_device_mesh(world);
  return options;
}

/// The gradients of what each rank would compute, in one process: the mean.
inline Tensors mean_gradients(
    int world_size, const std::function<Tensor(ChainImpl&, int)>& loss,
    const Model& model) {
  model->zero_grad();
  for (int rank = 0; rank < world_size; ++rank) {
    (loss(dynamic_cast<ChainImpl&>(*model), rank) / world_size).backward();
  }
  return plain_gradients(*model);
}

}  // namespace tessera::test
