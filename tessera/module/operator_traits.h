// What the gate has to know of an operator, worked out once per operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace tessera {

struct OperatorTraits {
  // Looks at sizes, strides and types only, or makes a view: nothing to gather.
  bool passive = false;
  // Works element by element, so that it is right on shards too.
  bool elementwise = false;
  // `to`, `contiguous` and the like: may give back their input itself, whose
  // memory the caller then reads through a pointer.
  bool may_return_input = false;
  // Arithmetic whose floating inputs FSDP2's cast_forward_inputs concerns.
  bool casts_inputs = false;
  // One of LibTorch's own: what it calls inside needs no gate.
  bool aten = true;
  // Arguments that may hold tensors.
  c10::SmallVector<uint8_t, 8> tensor_arguments;
  // Bit i: argument i is written.
  uint64_t written = 0;
  // Bit i: argument i is cast when casts_inputs.
  uint64_t cast = 0;
};

/// Cached per thread. The reference is good for the thread's life.
[[nodiscard]] const OperatorTraits& traits_of(const c10::OperatorHandle& op);

/// Worked out anew; for registration.
[[nodiscard]] OperatorTraits make_traits(const c10::OperatorHandle& op);

}  // namespace tessera
