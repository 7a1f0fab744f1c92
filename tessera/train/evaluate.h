// How well a model predicts a text that it was not trained on.
#pragma once

#include <cstdint>

#include "tessera/mesh/device_mesh.h"
#include "tessera/train/language_model.h"
#include "tessera/train/token_batches.h"

namespace tessera::train {

struct EvaluateOptions {
  int64_t batch = 8;        // windows of one forward of one rank
  int64_t max_windows = 0;  // spread evenly over the text; 0: all of them
};

struct Evaluation {
  double loss = 0;  // mean over all targets, nats
  int64_t tokens = 0;
};

/// The windows are shared out over the ranks of `mesh`; the answer is the same
/// on every rank, and at any number of ranks but for rounding. A collective.
[[nodiscard]] Evaluation evaluate(LanguageModel& model,
                                  const TokenBatches& text,
                                  const DeviceMesh& mesh,
                                  const EvaluateOptions& options = {});

}  // namespace tessera::train
