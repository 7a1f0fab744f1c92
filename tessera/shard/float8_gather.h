// Weights that travel as float8: half the bytes of a bfloat16 gather.
//
//   fully_shard(*block, {.mesh = mesh, .gather_transform = float8_gather()});
//
// Each row (slice along the dim that is cut) is scaled so that its largest
// element becomes 448, the largest float8_e4m3fn, and rounded to three bits of
// mantissa: what forward and backward compute with is off by at most 1/16 of an
// element, and by 2^-10 / 448 of the row's largest where an element is smaller
// than 2^-6 / 448 of that. Masters, gradients and the optimizer keep their
// dtype. The idea is torchao's float8 all-gather for FSDP2, which scales
// tensors.
#pragma once

#include <memory>

#include "tessera/shard/gather_transform.h"

namespace tessera {

/// For parameters of two and more dims; others travel as they are. A row with
/// NaN or infinity arrives as NaN.
[[nodiscard]] std::shared_ptr<GatherTransform> float8_gather();

}  // namespace tessera
