// One `requires_grad` for a full parameter and its shard.
//
// The user freezes and unfreezes through `parameters()` (the shards) or through
// the modules' members (the full parameters); either must take effect on the
// other before the next operator builds its graph. `set_requires_grad` cannot
// be overridden, `requires_grad` can: whichever side is asked first after a
// change brings the other up to date.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>

namespace tessera {

/// Links `full` and `shard`, both leaves; `full`'s flag is taken over. Hooks
/// and accumulated gradients of both are kept.
void link_requires_grad(const at::Tensor& full, const at::Tensor& shard);

}  // namespace tessera
