// How fast checkpoints are saved and loaded, beside PyTorch DCP and the disk.
//
//   tessera run -n 2 -- checkpoint_bench --preset 124m --dir ckpt
//
// The sharded model, its AdamW state, what is measured and the fields of the
// one JSON line that rank 0 prints are those of benchmarks/peer/dcp_bench.py.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "benchmarks/checkpoint_bench/run.h"
#include "tessera/train/model_presets.h"

namespace {

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& preset : tessera::train::model_presets()) {
    names.emplace_back(preset.name);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  checkpoint_bench::Options options;
  CLI::App app("Measures saves and loads of a Llama-type model and AdamW.");
  app.option_defaults()->always_capture_default();
  app.add_option("--preset", options.preset, "model")
      ->check(CLI::IsMember(preset_names()));
  app.add_option("--layers", options.layers, "0: the preset's")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--dir", options.folder, "folder, made anew and removed");
  app.add_option("--rounds", options.rounds, "of each measurement")
      ->check(CLI::PositiveNumber);
  app.add_option("--async-saves", options.async_saves, "one after the other")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.num_threads, "of each rank")
      ->check(CLI::PositiveNumber);
  app.add_option("--raw-gb", options.raw_gb,
                 "of all ranks, for the disk's own speed; 0: as the state")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--train-tokens", options.train_tokens,
                 "a step beside the asynchronous saves trains on so many; 0: "
                 "it multiplies matrices on the host")
      ->check(CLI::NonNegativeNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto world = tessera::init_distributed();
    const std::string line = checkpoint_bench::run(options, world);
    world.finish();
    if (world.rank() == 0) std::printf("%s\n", line.c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
