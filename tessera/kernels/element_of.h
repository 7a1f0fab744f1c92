// Dtypes of LibTorch as the kernels know them.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "tessera/kernels/launch.h"

namespace tessera::cuda {

/// Nothing for those that no kernel takes.
[[nodiscard]] inline std::optional<Element> element_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return Element::float32;
    case c10::kBFloat16:
      return Element::bfloat16;
    case c10::kHalf:
      return Element::float16;
    default:
      return std::nullopt;
  }
}

}  // namespace tessera::cuda
