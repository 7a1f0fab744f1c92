// One `requires_grad` for a full parameter and its shard, and one gradient, the
// shard's.
//
// The user freezes and unfreezes through `parameters()` (the shards) or through
// the modules' members (the full parameters); either must take effect on the
// other before the next operator builds its graph. `set_requires_grad` cannot
// be overridden, `requires_grad` can: whichever side is asked first after a
// change brings the other up to date.
//
// Backward takes each gradient from the full parameter at once, so that its
// `grad()` is undefined, as if it took no part in the loss. Optimizers skip
// such parameters: whoever asks gets an error instead.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace tessera {

/// Links `full`, over the storage of its owner, and `shard`, both leaves;
/// `full`'s flag is taken over. Hooks and accumulated gradients of both are
/// kept.
void link_requires_grad(const at::Tensor& full, const at::Tensor& shard);

}  // namespace tessera
