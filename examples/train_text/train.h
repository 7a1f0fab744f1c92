// The training loop.
#pragma once

#include <cstdint>
#include <vector>

#include "examples/train_text/model.h"
#include "examples/train_text/options.h"
#include "examples/train_text/text.h"
#include "tessera/mesh/device_mesh.h"

namespace train_text {

struct TrainResult {
  int64_t steps = 0;
  double seconds = 0;
  std::vector<double> losses;  // as printed: means over print_every steps
};

/// Trains until the steps or the minutes are over; prints progress on rank 0.
/// The model may be sharded over `mesh` or plain: the loop is the same.
TrainResult train(Llama& model, const Text& text, const Text& held_out,
                  const tessera::DeviceMesh& mesh, const Options& options);

}  // namespace train_text
