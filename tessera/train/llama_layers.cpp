#include "tessera/train/llama_layers.h"

#include <torch/torch.h>

#include "tessera/train/functions.h"

namespace tessera::train {

using at::Tensor;

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

RMSNormImpl::RMSNormImpl(const ModelConfig& c)
    : weight(register_parameter("weight", torch::empty(c.dim))),
      eps_(c.norm_eps),
      kernels_(c.kernels) {
  RMSNormImpl::reset_parameters();
}

void RMSNormImpl::reset_parameters() { torch::nn::init::ones_(weight); }

Tensor RMSNormImpl::norm(const Tensor& x) const {
  return kernels_ == ModelKernels::fused ? tessera::rms_norm(x, weight, eps_)
                                         : rms_norm(x, weight, eps_);
}

SumAndNorm RMSNormImpl::forward(const Stream& stream) {
  if (!stream.branch.defined()) return {stream.residual, norm(stream.residual)};
  if (kernels_ == ModelKernels::fused) {
    return add_rms_norm(stream.branch, stream.residual, weight, eps_);
  }
  const auto sum = stream.residual + stream.branch;
  return {sum, norm(sum)};
}

}  // namespace tessera::train
