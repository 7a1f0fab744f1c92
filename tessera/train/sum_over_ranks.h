// Numbers that all ranks agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/mesh/device_mesh.h"

namespace tessera::train {

/// The elementwise sum of every rank's `values`, on the mesh's device; bit for
/// bit the same on all ranks. A collective: all ranks call it, in the same
/// order as their other ones.
[[nodiscard]] at::Tensor sum_over_ranks(const at::Tensor& values,
                                        const DeviceMesh& mesh);

}  // namespace tessera::train
