// The random numbers of a CUDA graph.
//
// A generator's state says where its sequence stands before the graph. While a
// graph is being captured the position inside of it is counted apart; a replay
// adds both. Who goes back to an earlier point of a captured step (recompute)
// has to set the position inside, too.
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// Empty for a generator that is not in a capture.
[[nodiscard]] std::optional<uint64_t> captured_offset(
    const at::Generator& generator);

/// The generator must be in the capture that the offset is of.
void set_captured_offset(const at::Generator& generator, uint64_t offset);

/// After a capture that failed: the generator is in none.
void leave_capture(const at::Generator& generator);

}  // namespace tessera
