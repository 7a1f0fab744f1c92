// The dispatch state in which collectives touch tensors.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace tessera {

/// While it lives, operators of this thread record nothing for autograd, move
/// no version counter, and do not pass the gate (which would gather).
class BelowAutograd {
 private:
  at::AutoDispatchBelowADInplaceOrView no_autograd_;
  c10::impl::ExcludeDispatchKeyGuard no_gate_{c10::DispatchKey::DeferredInit};
};

}  // namespace tessera
