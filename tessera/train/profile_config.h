// The keys of [profile].
#pragma once

#include <cstdint>

#include "tessera/train/config_file.h"

namespace tessera::train {

/// Of which steps a trace is written, the first being 1; 0 to 0: of none.
struct ProfileConfig {
  int64_t first = 0;
  int64_t last = 0;
  bool memory = false;  // and what the GPU's allocator did in them
};

/// Errors: InvalidArgument as those of ConfigReader.
void read_profile(ConfigReader& reader, ProfileConfig& profile);

}  // namespace tessera::train
