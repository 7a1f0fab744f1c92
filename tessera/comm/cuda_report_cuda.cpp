#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "tessera/base/error.h"
#include "tessera/comm/cuda_report.h"

namespace tessera {

std::vector<std::string> cuda_device_names() {
  std::vector<std::string> names;
  for (int device = 0; device < c10::cuda::device_count(); ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    names.push_back(tessera::str(properties.name, ", ",
                                 properties.totalGlobalMem >> 20, " MiB"));
  }
  return names;
}

std::string nccl_version() { return c10d::getNcclVersion(); }

}  // namespace tessera
