// LibTorch's element types and those of our files.
#pragma once

#include <c10/core/ScalarType.h>

#include "tessera/base/dtype.h"

namespace tessera::checkpoint {

/// Errors: Unsupported for types that no file holds (quantized, bits).
[[nodiscard]] Dtype dtype_of(c10::ScalarType type);
[[nodiscard]] c10::ScalarType scalar_type_of(Dtype dtype);

}  // namespace tessera::checkpoint
