// What users do around a GraphedStep: graphs of their own, and dropping one
// whose replay is still at work.
#pragma once

#include "tessera/mesh/device_mesh.h"

namespace tessera {

/// A graph that the user captures behind a GraphedStep, with collectives in it,
/// and replays of both in turn.
[[nodiscard]] bool check_own_graph(const DeviceMesh& mesh);

/// A graph that is dropped while its last replay is at work: the next capture
/// goes on from what that replay leaves.
[[nodiscard]] bool check_drop_at_work(const DeviceMesh& mesh);

}  // namespace tessera
