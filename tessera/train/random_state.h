// The random numbers of a rank: what dropout draws from.
//
// Each rank draws its own; a run that goes on at as many ranks draws what it
// would have drawn.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "tessera/state/value.h"

namespace tessera::train {

/// Begins a stream that depends on all three. The same streams are drawn from
/// by every thread of the process.
void seed_random(uint64_t seed, int64_t step, int64_t rank);

/// Of the CPU's generator and, on another device, of that device's.
[[nodiscard]] Value random_state(c10::Device device);

/// Errors: InvalidArgument for what `random_state` did not give.
void set_random_state(const Value& state, c10::Device device);

}  // namespace tessera::train
