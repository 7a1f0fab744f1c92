// Views of boxes: of a whole tensor, and of a rank's part, whose boxes lie end
// to end.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/tensor/box.h"

namespace tessera {

[[nodiscard]] int64_t elements_of(const std::vector<int64_t>& sizes);
[[nodiscard]] int64_t elements_of(const std::vector<Box>& boxes);

/// `num_bytes`, rounded up to where any dtype may begin.
[[nodiscard]] int64_t aligned(int64_t num_bytes);

/// `count` elements of `type` from byte `at` on of `bytes`, a 1-D tensor of
/// bytes; `at` is aligned.
[[nodiscard]] at::Tensor elements_at(const at::Tensor& bytes, int64_t at,
                                     c10::ScalarType type, int64_t count);

[[nodiscard]] at::Tensor box_of_whole(const at::Tensor& whole, const Box& box);

/// Box `index` of a part. A part of one box may have any strides.
[[nodiscard]] at::Tensor box_of_part(const at::Tensor& part,
                                     const std::vector<Box>& boxes,
                                     size_t index);

}  // namespace tessera
