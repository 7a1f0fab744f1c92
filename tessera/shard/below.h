// For what the engine does with its own memory. Inside shard only.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>

#include "tessera/module/gate.h"

namespace tessera {

/// Neither autograd nor the gate sees what happens in its scope.
struct Below {
  at::AutoDispatchBelowADInplaceOrView autograd;
  GateOff gate;
};

[[nodiscard]] inline at::DataPtr no_memory(c10::Device device) {
  return {nullptr, device};
}

}  // namespace tessera
