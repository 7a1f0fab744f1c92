// Numbers that all ranks agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/mesh/device_mesh.h"

namespace train_text {

/// The elementwise sum of every rank's `values`, on the CPU. A collective: all
/// ranks call it, in the same order as their other ones.
[[nodiscard]] at::Tensor sum_over_ranks(const at::Tensor& values,
                                        const tessera::DeviceMesh& mesh);

}  // namespace train_text
