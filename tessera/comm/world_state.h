// What the handles of one World share. Inside comm only.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tessera/comm/collective_log.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/comm/transfer.h"
#include "tessera/comm/world.h"

namespace c10d {
class Backend;
}
namespace gloo::transport {
class Device;
}

namespace tessera {

/// One rank's place in its job.
struct WorldPlace {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  c10::Device device = c10::kCPU;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

struct World::State {
 public:
  /// `gloo_device` is empty for a world of one, and on CUDA.
  State(WorldPlace place, c10::intrusive_ptr<c10d::Store> store,
        std::shared_ptr<gloo::transport::Device> gloo_device);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const WorldPlace place;
  CollectiveLog log;
  TransferRegistry transfers;
  std::atomic<int64_t> next_id = 0;

  /// The store of one group, and its backend (empty for a group of one).
  /// Backends live as long as this world: a peer may still read from them.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> store_of(
      const std::string& prefix) const;
  [[nodiscard]] c10::intrusive_ptr<c10d::Backend> connect(
      const std::string& name, const std::vector<int>& ranks);

  [[nodiscard]] Rendezvous& rendezvous() { return rendezvous_; }
  [[nodiscard]] bool failed() const { return failed_; }

  /// Raises what a failed collective raises.
  [[noreturn]] void raise(const std::string& what);

  /// Ends all waits of this rank, and of its peers on this rank.
  void abort() noexcept;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<gloo::transport::Device> gloo_device_;
  std::atomic<bool> failed_ = false;
  Rendezvous rendezvous_;
  std::mutex mutex_;
  std::set<std::string> names_;
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;
};

}  // namespace tessera
