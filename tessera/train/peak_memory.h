// The most memory that this rank has held.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::train {

/// Bytes: of the device's tensors on a GPU, of the whole process on a CPU.
[[nodiscard]] int64_t peak_memory(c10::Device device);

}  // namespace tessera::train
