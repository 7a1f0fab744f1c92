// Makes c10d backends: the only door to Gloo and NCCL.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
};

/// The socket side of Gloo: one thread and one listening port, shared by all
/// Gloo backends of a rank. `interface` and `host_name` may be empty; with both
/// empty it binds to what this machine's host name resolves to.
[[nodiscard]] std::shared_ptr<gloo::transport::Device> make_gloo_device(
    const std::string& interface, const std::string& host_name);

/// Connects to all peers before it returns. `abort()` of the result closes all
/// connections at once, so that peers fail instead of waiting.
[[nodiscard]] c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const BackendPlace& place, std::shared_ptr<gloo::transport::Device> device);

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
