// The model of a run, with its first weights.
#pragma once

#include "examples/train_text/model.h"
#include "examples/train_text/options.h"
#include "tessera/mesh/device_mesh.h"

namespace train_text {

/// One process, no sharding: LibTorch alone.
[[nodiscard]] Llama plain_model(const Options& options);

/// Sharded over `mesh` from the start: no rank ever holds the whole model. The
/// same seed gives the same weights on any number of ranks. Collective.
[[nodiscard]] Llama sharded_model(const Options& options,
                                  const tessera::DeviceMesh& mesh);

}  // namespace train_text
