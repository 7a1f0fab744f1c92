// The host memory of this process.
#pragma once

#include <cstdint>

namespace checkpoint_bench {

/// Bytes that are in memory now.
[[nodiscard]] int64_t resident_bytes();

/// Bytes that were in memory at most since the last call.
[[nodiscard]] int64_t take_peak_resident_bytes();

}  // namespace checkpoint_bench
