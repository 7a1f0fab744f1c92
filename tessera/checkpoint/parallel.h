// A loop over a few threads, for reading and writing files.
#pragma once

#include <cstddef>
#include <functional>

namespace tessera::checkpoint {

/// Runs body(0) ... body(count - 1), each once, on at most `num_threads`
/// threads, the calling one among them. Rethrows the first failure; what has
/// not begun then is left out.
void parallel_for(size_t count, size_t num_threads,
                  const std::function<void(size_t)>& body);

}  // namespace tessera::checkpoint
