// The messages of one CPU collective under way, and all of a rank's that are.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <mutex>
#include <set>
#include <vector>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace tessera {

class TransferRegistry;

/// Point-to-point messages straight from and into tensors, which it keeps
/// alive. Messages of two ranks meet when their tags are equal.
class Transfer {
 public:
  explicit Transfer(TransferRegistry& registry);
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  /// Tensors must be contiguous; those without elements send nothing.
  void send(c10d::Backend& backend, const at::Tensor& tensor, int peer,
            int tag);
  void receive(c10d::Backend& backend, const at::Tensor& tensor, int peer,
               int tag);

  /// Returns when all messages have arrived and left. Errors: what the backend
  /// throws on a time-out or a lost peer; CommError after `abort`.
  void wait(std::chrono::milliseconds timeout);

  /// Ends a wait, now or later. From any thread.
  void abort() noexcept;

 private:
  void keep(c10::intrusive_ptr<c10d::Work> work);

  TransferRegistry& registry_;
  std::mutex mutex_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
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
