// The held-out loss, computed by all ranks together.
#pragma once

#include <cstdint>

#include "examples/train_text/model.h"
#include "examples/train_text/text.h"
#include "tessera/mesh/device_mesh.h"

namespace train_text {

struct EvaluateOptions {
  int64_t seq = 128;
  int64_t batch = 16;        // rows a rank and forward
  int64_t max_windows = -1;  // fewer: evenly spaced ones; -1: all
};

/// Mean over all bytes of -ln p(byte | bytes before it in its window); equal on
/// all ranks. Every rank runs the same number of forwards, since each forward
/// of a sharded model is a collective; rows past the end of the text count
/// nothing.
[[nodiscard]] double held_out_loss(Llama& model, const Text& text,
                                   const tessera::DeviceMesh& mesh,
                                   const EvaluateOptions& options);

}  // namespace train_text
