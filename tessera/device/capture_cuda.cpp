#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include "tessera/device/capture.h"

namespace tessera {

bool capturing(c10::Device device) {
  if (!device.is_cuda()) return false;
  cudaStreamCaptureStatus status{cudaStreamCaptureStatusNone};
  C10_CUDA_CHECK(cudaStreamIsCapturing(
      c10::cuda::getCurrentCUDAStream(device.index()), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace tessera
