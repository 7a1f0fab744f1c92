// The ranks over which the state of a model is spread, and how they move it.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>

#include "tessera/comm/world.h"
#include "tessera/state/peers.h"

namespace tessera {

class Communicator;

/// The phase of all its collectives, as the time-out table shows it.
inline constexpr const char* kStatePhase = "state dict: call it on all ranks";

struct StateGroup {
  Peers peers = {};
  std::shared_ptr<Communicator> communicator = nullptr;  // null: one rank
  c10::Device device = c10::kCPU;  // where it moves tensors
};

/// The ranks of the model's shards or, without any, of `world`.
/// Errors: InvalidArgument when this process is one of several ranks, and
///         neither says which, and for shards over different ranks.
[[nodiscard]] StateGroup state_group(torch::nn::Module& model,
                                     const World& world);

}  // namespace tessera
