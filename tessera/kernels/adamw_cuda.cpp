#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>

#include <optional>

#include "tessera/kernels/adamw.h"
#include "tessera/kernels/launch.h"

namespace tessera {

namespace {

// Elements are all alike to the kernel: their order is, too.
bool is_laid_out_as(const at::Tensor& tensor, const at::Tensor& parameter) {
  return tensor.scalar_type() == at::kFloat &&
         tensor.is_non_overlapping_and_dense() &&
         tensor.strides() == parameter.strides();
}

std::optional<cuda::Element> copy_element(const at::Tensor& copy) {
  if (!copy.defined()) return cuda::Element::float32;
  if (!copy.is_contiguous()) return std::nullopt;
  if (copy.scalar_type() == at::kBFloat16) return cuda::Element::bfloat16;
  if (copy.scalar_type() == at::kHalf) return cuda::Element::float16;
  return std::nullopt;
}

const float* floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

float* written(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

}  // namespace

bool adamw_in_one_pass(const AdamWTensors& t, const AdamWNumbers& n) {
  const auto element = copy_element(t.copy);
  if (!element || !t.parameter.is_cuda()) return false;
  for (const at::Tensor* tensor :
       {&t.parameter, &t.gradient, &t.exp_avg, &t.exp_avg_sq}) {
    if (!is_laid_out_as(*tensor, t.parameter)) return false;
  }
  const c10::DeviceGuard guard(t.parameter.device());
  cuda::launch(cuda::AdamW{.element = *element,
                           .numel = t.parameter.numel(),
                           .parameter = written(t.parameter),
                           .gradient = floats(t.gradient),
                           .exp_avg = written(t.exp_avg),
                           .exp_avg_sq = written(t.exp_avg_sq),
                           .max_exp_avg_sq = written(t.max_exp_avg_sq),
                           .copy = t.copy.defined() ? t.copy.mutable_data_ptr()
                                                    : nullptr,
                           .step = floats(t.step),
                           .rate = floats(t.rate),
                           .skip = floats(t.skip),
                           .factor = floats(t.factor),
                           .beta1 = n.beta1,
                           .beta2 = n.beta2,
                           .eps = n.eps,
                           .weight_decay = n.weight_decay},
               at::cuda::getCurrentCUDAStream(t.parameter.get_device()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return true;
}

}  // namespace tessera
