// Makes c10d backends: the only door to Gloo and NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/device/stream.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace gloo::transport {
class Device;
}

namespace tessera {

/// Where one rank stands in the group that a backend connects.
struct BackendPlace {
  c10::intrusive_ptr<c10d::Store> store;  // of this group alone
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout;
  std::string name;
  std::vector<int> world_ranks;
  StreamPriority stream_priority = StreamPriority::high;  // NCCL's own
  int num_threads = 1;  // Gloo: that run its own collectives
};

/// Makes a backend, connected to its peers. `abort()` of it must end all waits.
using BackendMaker =
    std::function<c10::intrusive_ptr<c10d::Backend>(const BackendPlace&)>;

/// The socket sides of Gloo, shared by all Gloo backends of a rank: each one
/// thread and one listening port.
using GlooDevices = std::vector<std::shared_ptr<gloo::transport::Device>>;

/// One for each of `interfaces`, a list with commas. Where that is empty, one
/// on `host_name`, or on what this machine's host name resolves to.
[[nodiscard]] GlooDevices make_gloo_devices(const std::string& interfaces,
                                            const std::string& host_name);

/// Connects to all peers before it returns. `abort()` of the result closes all
/// connections at once, so that peers fail instead of waiting.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendPlace& place, const GlooDevices& devices);

/// What a mesh makes the communicator of this name for: "gather" of
/// "dp_shard/gather#1" (DeviceMesh). "" for other names.
[[nodiscard]] inline std::string_view purpose_of(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return "";
  name.remove_prefix(slash + 1);
  return name.substr(0, name.find('#'));
}

/// Whether it only sums some numbers.
[[nodiscard]] inline bool moves_numbers_only(std::string_view name) {
  return purpose_of(name) == "control" || purpose_of(name) == "norm";
}

/// True in a CUDA build on a machine with a CUDA device.
[[nodiscard]] bool nccl_is_available();

/// The CUDA device of a rank; makes it current. Without a local rank it must be
/// the only device, or the only rank.
/// Errors: InvalidArgument when the machine has no such device, or the choice
///         is unclear; Unsupported in a build without CUDA.
[[nodiscard]] c10::Device choose_cuda_device(std::optional<int> local_rank,
                                             int world_size);

/// Connects eagerly on `device`, whose current-stream order its collectives
/// follow. Errors: Unsupported in a build without CUDA.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const BackendPlace& place, c10::Device device);

}  // namespace tessera
