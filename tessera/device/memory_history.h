// What LibTorch's allocator of a GPU does: each allocation, free and segment,
// in the order in which they come.
//
//   start_memory_history(device);
//   ... a step ...
//   write_memory_history("memory-rank-0.pickle");
//
// The file is what torch.cuda.memory._dump_snapshot writes in Python; its
// viewer is pytorch.org/memory_viz.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace tessera {

/// From here on the allocator of this process notes what it does, until
/// `write_memory_history`. Errors: Unsupported, when `device` is no GPU.
void start_memory_history(c10::Device device);

/// Writes what was noted and what memory there is, and ends the noting.
/// Errors: InvalidState, when the file cannot be written.
void write_memory_history(const std::string& path);

/// Ends the noting; nothing is written.
void drop_memory_history();

}  // namespace tessera
