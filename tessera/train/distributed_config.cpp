#include "tessera/train/distributed_config.h"

#include "tessera/comm/peer_rounds.h"

namespace tessera::train {

std::optional<Transport> transport_of(TransportChoice choice) {
  if (choice == TransportChoice::automatic) return std::nullopt;
  return choice == TransportChoice::copy_engines ? Transport::copy_engines
                                                 : Transport::nccl;
}

void read_distributed(ConfigReader& reader, DistributedConfig& distributed) {
  reader.get("distributed.timeout_seconds", distributed.timeout_seconds,
             {.min = 0, .max = 1e6});
  reader.get("distributed.transport", distributed.transport,
             {{"auto", TransportChoice::automatic},
              {"nccl", TransportChoice::nccl},
              {"copy_engines", TransportChoice::copy_engines}});
  reader.get("distributed.window_mib", distributed.window_mib, "auto",
             {.min = 1, .max = kMostPeerWindowMib});
}

}  // namespace tessera::train
