#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "tessera/device/capture.h"

namespace tessera {

std::optional<uint64_t> capture_id(c10::Device device) {
  if (!device.is_cuda()) return std::nullopt;
  cudaStreamCaptureStatus status{cudaStreamCaptureStatusNone};
  unsigned long long id = 0;  // NOLINT(google-runtime-int): CUDA's type
  C10_CUDA_CHECK(cudaStreamGetCaptureInfo(
      c10::cuda::getCurrentCUDAStream(device.index()).stream(), &status, &id));
  if (status == cudaStreamCaptureStatusNone) return std::nullopt;
  return id;
}

}  // namespace tessera
