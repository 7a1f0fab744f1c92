// Norms of parts of a flat gradient, for whoever needs the norm over all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/tensor/spread.h"

namespace tessera {

/// The pieces with those side by side made one, by offset: what clip_grad_norm_
/// asks the norms of. Empty pieces are left out.
[[nodiscard]] std::vector<FlatPiece> joined(std::vector<FlatPiece> pieces);

/// Asks the current stream for them.
[[nodiscard]] std::vector<NormsOfPart> norms_of(
    const at::Tensor& flat, const std::vector<FlatPiece>& parts);

}  // namespace tessera
