// The models that are measured: sharded, whole, and wrapped.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>

#include "benchmarks/step_bench/options.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/parallel/distributed_data_parallel.h"
#include "tessera/train/language_model.h"

namespace step_bench {

using tessera::train::LanguageModelPtr;

/// With weights as the peer's: normal with deviation 0.02; norms are one.
[[nodiscard]] LanguageModelPtr plain_model(const Options& options,
                                           c10::Device device);
[[nodiscard]] LanguageModelPtr sharded_model(const Options& options,
                                             const tessera::DeviceMesh& mesh);

/// The weights that `draw_by_name` of the peer draws.
void draw_weights_by_name(torch::nn::Module& model);

/// The model's loss as a forward, which DistributedDataParallel wraps.
struct LossImpl : torch::nn::Module {
  explicit LossImpl(LanguageModelPtr wrapped)
      : model(register_module("model", std::move(wrapped))) {}
  torch::Tensor forward(const torch::Tensor& tokens,
                        const torch::Tensor& targets) {
    return model->sum_of_losses(tokens, targets);
  }
  LanguageModelPtr model;
};
using Parallel = tessera::DistributedDataParallel<std::shared_ptr<LossImpl>>;

/// bfloat16 in this thread's forward, while it lives.
class Autocast {
 public:
  explicit Autocast(c10::DeviceType device) : device_(device) {
    at::autocast::set_autocast_dtype(device_, torch::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
};

}  // namespace step_bench
