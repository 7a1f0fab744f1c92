// One operator call as the gate sees it: whom it concerns, and the scope in
// which it runs. Shared by the boxed fallback and the unboxed kernels.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/IListRef.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>

#include "tessera/module/gated_storage.h"
#include "tessera/module/operator_traits.h"

namespace tessera {

/// Notes that shards are written. LibTorch's fused optimizers (_fused_sgd_) and
/// operators of others' without an autograd kernel leave the version counters
/// where they are: gathered weights would then seem to be those of the shards.
class WrittenShards {
 public:
  WrittenShards() = default;
  ~WrittenShards() {
    for (Counter& counter : counters_) {
      if (counter.of_shards.current_version() == counter.before) {
        counter.of_shards.bump();
      }
    }
  }
  WrittenShards(const WrittenShards&) = delete;
  WrittenShards& operator=(const WrittenShards&) = delete;

  /// Before the operator. The shards in one storage share a counter.
  void add(const GatedStorage* storage, const at::Tensor& shard) {
    for (const Counter& counter : counters_) {
      if (counter.storage == storage) return;
    }
    const auto& version = shard.unsafeGetTensorImpl()->version_counter();
    if (!version.enabled()) return;
    counters_.push_back({storage, version, version.current_version()});
  }

 private:
  struct Counter {
    const GatedStorage* storage;
    c10::VariableVersion of_shards;
    uint32_t before;
  };
  c10::SmallVector<Counter, 2> counters_;
};

class GateUse {
 public:
  GateUse(const char* name, bool elementwise)
      : name_(name), elementwise_(elementwise) {}
  ~GateUse() {
    for (size_t i = 0; i < entered_; ++i) owners_[i]->after_read();
  }
  GateUse(const GateUse&) = delete;
  GateUse& operator=(const GateUse&) = delete;

  /// Notes an argument that the operator reads. Raises for a shard that the
  /// operator would read as if it were the parameter.
  void reads(const at::Tensor& tensor) {
    GatedStorage* storage = gated_storage_of(tensor);
    if (!storage) return;
    if (StorageOwner* owner = storage->owner()) {
      // Brings a flag changed through parameters() to the full parameter.
      (void)tensor.unsafeGetTensorImpl()->requires_grad();
      add(owner);
    } else if (!elementwise_) {
      storage->guard()->refuse(name_, tensor);
    }
  }
  void reads(const std::optional<at::Tensor>& tensor) {
    if (tensor) reads(*tensor);
  }
  void reads(at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) reads(tensor);
  }
  void reads(const at::ITensorListRef& tensors) {
    for (const at::Tensor& tensor : tensors) reads(tensor);
  }
  template <class Other>
  void reads(const Other&) {}

  /// Raises when `tensor` is a full parameter. A write to a shard is seen in
  /// its version once the operator has run.
  void writes(const at::Tensor& tensor) {
    GatedStorage* storage = gated_storage_of(tensor);
    if (!storage) return;
    if (storage->owner()) storage->owner()->refuse_write(name_, tensor);
    storage->guard()->note_write();
    written_.add(storage, tensor);
  }

  /// Has everything gathered. Their `after_read` comes with the destructor.
  void enter() {
    const OperatorUse use{name_, owners_};
    for (StorageOwner* owner : owners_) {
      owner->before_read(use);
      ++entered_;
    }
  }

  /// The owner whose dtype the operator's inputs are cast to, if any.
  [[nodiscard]] StorageOwner* caster() const {
    for (StorageOwner* owner : owners_) {
      if (owner->casts_inputs()) return owner;
    }
    return nullptr;
  }

 private:
  void add(StorageOwner* owner) {
    if (std::find(owners_.begin(), owners_.end(), owner) == owners_.end()) {
      owners_.push_back(owner);
    }
  }

  const char* name_;
  bool elementwise_;
  WrittenShards written_;
  c10::SmallVector<StorageOwner*, 4> owners_;
  size_t entered_ = 0;
};

/// Autocast keeps casts of leaf weights until clear_cache: under the gate a
/// whole model in the lower dtype would stay. Off while an operator runs.
class AutocastCacheOff {
 public:
  AutocastCacheOff() {
    // Autocast is on where its key is not excluded; nothing includes it.
    const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
    if (excluded.has_all(c10::autocast_dispatch_keyset)) return;
    restore_ = at::autocast::is_autocast_cache_enabled();
    if (restore_) at::autocast::set_autocast_cache_enabled(false);
  }
  ~AutocastCacheOff() {
    if (restore_) at::autocast::set_autocast_cache_enabled(true);
  }
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  bool restore_ = false;
};

}  // namespace tessera
