#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "tessera/device/host_memory.h"

namespace tessera {

at::Tensor make_host_bytes(int64_t num_bytes, c10::Device device) {
  if (!device.is_cuda() || num_bytes == 0) {
    return at::empty({num_bytes}, at::kByte);
  }
  const c10::cuda::CUDAGuard guard(device);
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaHostAlloc(&memory, static_cast<size_t>(num_bytes),
                               cudaHostAllocDefault));
  const auto free = [](void* pinned) {
    C10_CUDA_IGNORE_ERROR(cudaFreeHost(pinned));
  };
  return at::from_blob(memory, {num_bytes}, free, at::kByte);
}

}  // namespace tessera
