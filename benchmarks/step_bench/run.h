// The measured training steps.
#pragma once

#include <string>

#include "benchmarks/step_bench/options.h"
#include "tessera/comm/world.h"

namespace step_bench {

/// Trains for warmup + steps steps. Returns one line of JSON with the fields of
/// the peer: medians over the measured steps, of this rank.
[[nodiscard]] std::string run(const Options& options,
                              const tessera::World& world);

}  // namespace step_bench
