// Gathers and reduce-scatters in bytes. Inside comm only.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/comm/byte_overlap.h"
#include "tessera/comm/communicator.h"

namespace tessera {

/// Of an element.
[[nodiscard]] int64_t size_of(c10::ScalarType type);

/// Of one rank's part of each call, as it travels.
[[nodiscard]] std::vector<int64_t> part_bytes(
    std::span<const GatherCall> calls);
[[nodiscard]] std::vector<int64_t> part_bytes(
    std::span<const PiecewiseReduceCall> calls);

/// The pieces of the call's input, in the whole.
[[nodiscard]] std::vector<ByteRange> ranges_of(const PiecewiseReduceCall& call);

}  // namespace tessera
