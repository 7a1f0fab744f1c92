#include "tessera/kernels/two_norm.h"

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>

#include "tessera/kernels/element_of.h"
#include "tessera/kernels/launch.h"

namespace tessera {

std::vector<at::Tensor> two_norms_in_one_pass(
    const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || !tensors[0].is_cuda()) return {};
  const auto element = cuda::element_of(tensors[0].scalar_type());
  if (!element) return {};
  const auto device = tensors[0].device();
  const c10::DeviceGuard guard(device);
  const auto count = static_cast<int64_t>(tensors.size());
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor norms = at::empty({count}, options);
  const at::Tensor partial = at::empty({count, cuda::kTwoNormBlocks}, options);
  std::vector<cuda::TwoNorm> calls;
  for (int64_t i = 0; i < count; ++i) {
    calls.push_back({.element = *element,
                     .numel = tensors[i].numel(),
                     .values = tensors[i].const_data_ptr(),
                     .partial = partial.mutable_data_ptr<float>() +
                                i * cuda::kTwoNormBlocks,
                     .norm = norms.mutable_data_ptr<float>() + i});
  }
  cuda::launch(calls.data(), static_cast<int>(count),
               at::cuda::getCurrentCUDAStream(device.index()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return norms.unbind();
}

}  // namespace tessera
