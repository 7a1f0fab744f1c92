#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <string>

#include "tessera/comm/peer_rounds.h"
#include "tessera/comm/world.h"

namespace tessera {

/// One rank's place in its job.
struct WorldPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  c10::Device device = c10::kCPU;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  Transport transport = Transport::nccl;
  int64_t window_mib = kPeerWindowMib;
  std::string launcher = "threads of one process";
};

}  // namespace tessera
