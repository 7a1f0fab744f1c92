#pragma once

namespace tessera {

/// What gathers and reduce-scatters between GPUs go by.
enum class Transport {
  nccl,
  // Between the GPUs of one machine by their copy engines, which take no
  // processors from the compute; a reduce-scatter is then summed in float32 on
  // the receiving GPU, and gradients that were computed in 16 bits travel so.
  // Costs memory for what is under way (docs/collectives.md). Groups of several
  // machines, and all other collectives, go by NCCL.
  copy_engines,
};

/// As options and the environment spell it.
[[nodiscard]] constexpr const char* name_of(Transport transport) {
  return transport == Transport::nccl ? "nccl" : "copy_engines";
}

}  // namespace tessera
