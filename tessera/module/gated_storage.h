// Storages whose tensors the gate guards, and what stands behind them.
//
// A tensor is gated when its key set holds kGateKey; views and detached copies
// inherit both key and storage. From the storage the gate finds, without a map
// and without a lock, whom to ask: a StorageOwner for full parameters (gather
// first), a ShardGuard for shards and their gradients (refuse what would be
// silently local).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Reserved by PyTorch for use outside its tree; above autograd and autocast.
inline constexpr c10::DispatchKey kGateKey = c10::DispatchKey::DeferredInit;

class StorageOwner;

/// What one operator call is about to do, as the owners are told.
struct OperatorUse {
  const char* name;                       // "aten::addmm"
  std::span<StorageOwner* const> owners;  // all whose parameters it reads
};

/// The unit behind full parameters.
class StorageOwner {
 public:
  virtual ~StorageOwner() = default;

  /// An operator is about to read parameters of this owner: they must be whole
  /// when this returns, and those of the other `use.owners` must stay so.
  virtual void before_read(const OperatorUse& use) = 0;

  /// The operator has been issued (also when it threw).
  virtual void after_read() noexcept = 0;

  /// An operator would write to a full parameter whose place in the storage is
  /// `offset` elements. Raises.
  [[noreturn]] virtual void refuse_write(const char* name,
                                         const at::Tensor& tensor) = 0;

  /// The gradient of a full parameter is asked for where there is none. Raises.
  [[noreturn]] virtual void refuse_grad(const at::Tensor& tensor) const = 0;

  /// `input` in the dtype in which this owner's parameters compute, when it is
  /// to be cast (FSDP2's cast_forward_inputs); `input` itself otherwise.
  virtual at::Tensor cast_input(const at::Tensor& input) = 0;
  [[nodiscard]] virtual bool casts_inputs() const = 0;
};

/// Names the parameters whose shards lie in one storage, for errors.
class ShardGuard {
 public:
  struct Named {
    int64_t offset;  // elements
    int64_t numel;
    std::string name;
  };

  explicit ShardGuard(std::string what) : what_(std::move(what)) {}

  void set_names(std::vector<Named> names) { names_ = std::move(names); }
  /// Raises Unsupported: `op` over `tensor`, a view of a shard or its gradient,
  /// would be silently local.
  [[noreturn]] void refuse(const char* op, const at::Tensor& tensor) const;

  /// An operator writes to a tensor over the storage, whatever its version
  /// counter: the one of `.data()` is another.
  void note_write() const { num_writes_.fetch_add(1); }
  [[nodiscard]] uint64_t num_writes() const { return num_writes_.load(); }

 private:
  std::string what_;  // "shard" or "gradient of the shard"
  std::vector<Named> names_;
  mutable std::atomic<uint64_t> num_writes_{0};
};

/// A StorageImpl that knows its owner. Exactly one of `owner` and `guard` is
/// set. The owner lives at least as long as the storage.
class GatedStorage final : public c10::StorageImpl {
 public:
  GatedStorage(size_t num_bytes, at::DataPtr data, c10::Allocator* allocator,
               std::shared_ptr<StorageOwner> owner,
               std::shared_ptr<const ShardGuard> guard);
  ~GatedStorage() override;

  [[nodiscard]] StorageOwner* owner() const { return owner_.get(); }
  [[nodiscard]] const ShardGuard* guard() const { return guard_.get(); }

  /// Called when the storage dies; the owner forgets its raw pointer there.
  void set_on_death(c10::StorageImpl** slot) { slot_ = slot; }

 private:
  std::shared_ptr<StorageOwner> owner_;
  std::shared_ptr<const ShardGuard> guard_;
  c10::StorageImpl** slot_ = nullptr;
};

/// The gated storage under `tensor`, or null for any other tensor.
[[nodiscard]] GatedStorage* gated_storage_of(const at::Tensor& tensor);

/// Somebody writes to `tensor` where neither the gate nor a version counter
/// tells, as collectives do: if it is a shard or a gradient of one, those that
/// keep something made of it see that it has changed.
void note_write_below_gate(const at::Tensor& tensor);

/// Puts `tensor` under the gate. Its storage must be a GatedStorage.
void add_gate_key(const at::Tensor& tensor);

/// A tensor over `storage` (whose memory may be absent), without gate key,
/// autograd history or version of others; contiguous when `strides` are empty.
[[nodiscard]] at::Tensor tensor_over(c10::StorageImpl* storage,
                                     c10::ScalarType dtype, int64_t offset,
                                     at::IntArrayRef sizes,
                                     at::IntArrayRef strides = {});

}  // namespace tessera
