#include "tessera/kernels/two_norm.h"

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAException.h>

#include <optional>

#include "tessera/kernels/launch.h"

namespace tessera {

namespace {

std::optional<cuda::Element> element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return cuda::Element::float32;
    case at::kBFloat16:
      return cuda::Element::bfloat16;
    case at::kHalf:
      return cuda::Element::float16;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::vector<at::Tensor> two_norms_in_one_pass(
    const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || !tensors[0].is_cuda()) return {};
  const auto element = element_of(tensors[0].scalar_type());
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
