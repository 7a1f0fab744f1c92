// The measured saves and loads.
#pragma once

#include <cstdint>
#include <string>

#include "tessera/comm/world.h"

namespace checkpoint_bench {

struct Options {
  std::string preset = "tiny";  // those of benchmarks/peer/fsdp2_bench.py
  int64_t layers = 0;           // 0: the preset's
  std::string folder = "ckpt";  // made anew, and removed in the end
  int64_t rounds = 3;           // of each measurement; the median counts
  int64_t async_saves = 3;
  int64_t num_threads = 4;   // that write and read, on each rank
  double raw_gb = 0;         // of the disk's own speed; 0: as many as the state
  int64_t train_tokens = 0;  // of each rank in a step of training beside the
                             // saves; 0: work of a fixed size on the host
};

/// Returns one line of JSON with the fields of benchmarks/peer/dcp_bench.py.
/// Collective.
[[nodiscard]] std::string run(const Options& options,
                              const tessera::World& world);

}  // namespace checkpoint_bench
