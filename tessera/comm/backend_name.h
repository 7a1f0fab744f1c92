// Which backend a group uses for which device, as torch.distributed writes it.
//
//   ""                     that of the world: gloo on CPU, nccl on CUDA
//   "gloo"                 one for all devices it takes
//   "cpu:gloo,cuda:nccl"   one for each kind of device
//
// Pure: what exists comes as a list of names.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct BackendChoice {
  std::string device;   // "cpu" or "cuda"
  std::string backend;  // in lower case
  bool operator==(const BackendChoice&) const = default;
};

/// One for each kind of device, cpu first. `available` holds what is compiled
/// in or registered, `world_device` is "cpu" or "cuda".
/// Errors: InvalidArgument for a broken text; Unsupported for a backend that is
///         not available, MPI, UCC and XCCL among them: it names those that
///         are.
[[nodiscard]] std::vector<BackendChoice> choose_backends(
    const std::string& text, const std::string& world_device,
    const std::vector<std::string>& available);

}  // namespace tessera
