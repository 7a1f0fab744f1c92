// How long one training step takes, beside PyTorch FSDP2.
//
//   tessera run -n 2 -- step_bench --preset tiny --fp32 --batch 1 --seq 64
//
// The model, its data, the optimizer, the options and the fields of the one
// JSON line that rank 0 prints are those of benchmarks/peer/fsdp2_bench.py;
// benchmarks/compare runs both.
#include <cstdio>
#include <exception>

#include "benchmarks/step_bench/options.h"
#include "benchmarks/step_bench/run.h"
#include "tessera/device/growing_segments.h"

int main(int argc, char** argv) {
  const auto options = step_bench::parse_options(argc, argv);
  if (!options) {
    return 2;
  }
  try {
    const auto world = tessera::init_distributed({.transport = options->transport});
    tessera::prefer_growing_segments(world.device());
    const std::string line = step_bench::run(*options, world);
    world.finish();
    if (world.rank() == 0) {
      std::printf("%s\n", line.c_str());
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
