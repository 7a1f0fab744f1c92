// The messages of one CPU collective under way, and all of a rank's that are.
//
// To a rank of the same machine they go through shared memory, to others
// through the backend (Gloo, over TCP).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "tessera/comm/host_link.h"

namespace c10d {
class Work;
}

namespace tessera {

class TransferRegistry;
struct Routes;

/// Point-to-point messages straight from and into tensors, which it keeps
/// alive. Messages of two ranks meet when their tags are equal.
class Transfer {
 public:
  Transfer(TransferRegistry& registry, std::shared_ptr<const Routes> routes);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Tensors must be contiguous; those without elements send nothing.
  void send(const at::Tensor& tensor, int peer, int tag);
  void receive(const at::Tensor& tensor, int peer, int tag);
  /// From whichever peer sends with this tag first; not through shared memory.
  void receive_from_any(const at::Tensor& tensor, int tag);

  /// Who sent the last message that was received. After `wait`.
  [[nodiscard]] int source() const { return source_; }

  /// Returns when all messages have arrived and left. Errors: what the backend
  /// throws on a time-out or a lost peer; CommError after `abort`.
  void wait(std::chrono::milliseconds timeout);

  /// Ends a wait, now or later. From any thread.
  void abort() noexcept;

 private:
  [[nodiscard]] HostChannel* channel_to(int peer) const;
  [[nodiscard]] Message message_of(const at::Tensor& tensor, int tag);
  void keep(c10::intrusive_ptr<c10d::Work> work);

  TransferRegistry& registry_;
  std::shared_ptr<const Routes> routes_;
  std::shared_ptr<MessageCount> in_shared_memory_;
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  int source_ = -1;
  bool aborted_ = false;
};

/// Aborts every transfer of a rank, also those that begin later.
class TransferRegistry {
 public:
  void abort_all() noexcept;

 private:
  friend class Transfer;
  void add(Transfer& transfer);
  void remove(Transfer& transfer);

  std::mutex mutex_;
  std::set<Transfer*> transfers_;
  bool aborted_ = false;
};

}  // namespace tessera
