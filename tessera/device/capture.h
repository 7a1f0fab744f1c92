// Whether work is being recorded into a CUDA graph instead of being done.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// Which graph what this thread asks of `device` now goes into: another number
/// for each; empty where it goes into none.
[[nodiscard]] std::optional<uint64_t> capture_id(c10::Device device);

/// Whether what this thread asks of `device` now goes into a graph. Then
/// nothing may wait for the device, and no value on it can be read.
[[nodiscard]] inline bool capturing(c10::Device device) {
  return capture_id(device).has_value();
}

/// The graph captured as `id` will not be replayed any more, and no replay of
/// it is under way. Of graphs for which nobody says so that is never known.
void note_graph_gone(uint64_t id);
[[nodiscard]] bool is_graph_gone(uint64_t id);

}  // namespace tessera
