// Whether work is being recorded into a CUDA graph instead of being done.
#pragma once

#include <c10/core/Device.h>

namespace tessera {

/// Whether what this thread asks of `device` now goes into a graph. Then
/// nothing may wait for the device, and no value on it can be read.
[[nodiscard]] bool capturing(c10::Device device);

}  // namespace tessera
