// What the command line chooses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "examples/train_text/model.h"

namespace train_text {

enum class Strategy { sharded, plain };

struct Options {
  std::string data = "data/text";  // holds train.txt and heldout.txt
  std::string out;                 // writes result.json there; empty: nowhere
  Strategy strategy = Strategy::sharded;
  ModelConfig model;

  // Of one step, over all ranks: so a run is the same at any number of ranks.
  int64_t batch = 12;
  int64_t steps = 1600;
  double minutes = 0;    // above 0: trains that long instead, same schedule
  double lr = 6e-3;      // after the warm-up; falls to 0 along a cosine
  double warmup = 0.03;  // share of the training
  double weight_decay = 0.1;
  double max_norm = 1.0;
  uint64_t seed = 1;

  int64_t print_every = 20;
  int64_t evaluate_every = 200;  // steps; on a part of the held-out text
  int64_t sample_bytes = 400;
  double temperature = 0.7;
  std::string prompt = "\n";
};

/// Ends the program for --help. Empty when the line is wrong; the reason is
/// then on stderr.
[[nodiscard]] std::optional<Options> parse_options(int argc, char** argv);

/// Errors: InvalidArgument that names the option.
void validate(const Options& options, int world_size);

}  // namespace train_text
