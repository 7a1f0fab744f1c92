// What there is of CUDA, for people.
#pragma once

#include <string>
#include <vector>

namespace tessera {

/// "NVIDIA H100 80GB HBM3, 81089 MiB", by device index. Empty in a build
/// without CUDA, and without a device.
[[nodiscard]] std::vector<std::string> cuda_device_names();

/// "2.28.9"; empty in a build without CUDA.
[[nodiscard]] std::string nccl_version();

}  // namespace tessera
