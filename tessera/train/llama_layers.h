// What the blocks of a Llama-type model are made of: layers without bias, the
// norm, and the residual stream between them.
#pragma once

#include <torch/nn/modules/linear.h>

#include "tessera/kernels/rms_norm.h"
#include "tessera/module/initializers.h"
#include "tessera/train/model_presets.h"

namespace tessera::train {

/// A layer without bias.
[[nodiscard]] torch::nn::Linear linear(int64_t in, int64_t out);

/// The residual stream: the sum of both, still to be added. `branch` is
/// undefined where nothing is to be added.
struct Stream {
  at::Tensor residual, branch;
};

class RMSNormImpl : public torch::nn::Module, public Initializable {
 public:
  explicit RMSNormImpl(const ModelConfig& config);
  void reset_parameters() override;
  /// The stream, added up, and its norm.
  [[nodiscard]] SumAndNorm forward(const Stream& stream);
  [[nodiscard]] at::Tensor norm(const at::Tensor& x) const;
  [[nodiscard]] double eps() const { return eps_; }

  at::Tensor weight;

 private:
  double eps_;
  ModelKernels kernels_;
};
TORCH_MODULE(RMSNorm);

}  // namespace tessera::train
