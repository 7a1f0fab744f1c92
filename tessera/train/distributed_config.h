// The keys of [distributed].
#pragma once

#include <optional>

#include "tessera/comm/transport.h"
#include "tessera/train/config_file.h"

namespace tessera::train {

/// automatic: as TESSERA_TRANSPORT says, else nccl.
enum class TransportChoice { automatic, nccl, copy_engines };

struct DistributedConfig {
  double timeout_seconds = 0;  // 0: 600 on NCCL, 1800 on Gloo
  TransportChoice transport = TransportChoice::automatic;
  std::optional<int64_t> window_mib = {};  // as InitOptions
};

/// Empty for automatic.
[[nodiscard]] std::optional<Transport> transport_of(TransportChoice choice);

/// Errors: InvalidArgument as those of ConfigReader.
void read_distributed(ConfigReader& reader, DistributedConfig& distributed);

}  // namespace tessera::train
