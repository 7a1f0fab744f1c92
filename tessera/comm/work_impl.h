// What stands behind a distributed::Work. Inside comm only.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/comm/transfer.h"
#include "tessera/comm/work.h"
#include "tessera/comm/world_state.h"

namespace tessera::distributed {

/// The works of one call.
class Work::Impl {
 public:
  Impl(std::shared_ptr<World::State> world, uint64_t sequence,
       std::chrono::milliseconds timeout)
      : world_(std::move(world)), sequence_(sequence), timeout_(timeout) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  /// Works of collectives, or of any backend but Gloo. `gloo` is the backend of
  /// a collective over Gloo, else empty: closing its connections wakes the
  /// peers, but not the thread of this rank that waits in it.
  void add(c10::intrusive_ptr<c10d::Work> work,
           c10::intrusive_ptr<c10d::Backend> gloo = {});

  /// What this call writes, now or later. Shards and their gradients are
  /// marked as changed here, and once more when the call has ended.
  void will_write(const at::Tensor& output);

  /// The messages of this call over `backend`, which is Gloo's; an abort of the
  /// world ends them.
  [[nodiscard]] Transfer& messages(
      const c10::intrusive_ptr<c10d::Backend>& backend);

  void wait(std::optional<std::chrono::milliseconds> timeout);
  [[nodiscard]] bool is_completed() const;
  [[nodiscard]] std::exception_ptr exception() const;
  [[nodiscard]] int source_rank() const { return source_; }
  void set_source(int group_rank) { source_ = group_rank; }

 private:
  [[nodiscard]] bool all_completed() const;
  void wait_for_all(std::optional<std::chrono::milliseconds> timeout);
  void wait_for(c10d::Work& work,
                std::optional<std::chrono::milliseconds> timeout);
  void wait_in_slices(c10d::Work& work,
                      std::optional<std::chrono::milliseconds> timeout);

  std::shared_ptr<World::State> world_;
  uint64_t sequence_;
  std::chrono::milliseconds timeout_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::unique_ptr<Transfer> messages_;
  bool ended_ = false;
  std::exception_ptr failure_;
  int source_ = -1;
  std::vector<at::Tensor> outputs_;
};

}  // namespace tessera::distributed
