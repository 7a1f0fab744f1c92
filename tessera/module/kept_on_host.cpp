#include "tessera/module/kept_on_host.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "tessera/device/capture.h"
#include "tessera/module/offload_timeline.h"
#include "tessera/module/storage_memory.h"

namespace tessera::internal {

namespace {

int64_t size_of(const c10::Storage& storage) {
  return static_cast<int64_t>(storage.nbytes());
}

/// Its memory as bytes, which lives as long as the storage keeps it.
at::Tensor bytes_of(const c10::Storage& storage) {
  return at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()))
      .set_(storage, 0, {size_of(storage)}, {1});
}

/// Different ones: two values may be views of one.
std::vector<c10::Storage> storages_of(const std::vector<at::Tensor>& values) {
  std::vector<c10::Storage> storages;
  for (const at::Tensor& value : values) {
    const c10::Storage& storage = value.storage();
    const bool known = std::ranges::any_of(
        storages,
        [&](const c10::Storage& other) { return other.is_alias_of(storage); });
    if (!known && storage.nbytes() > 0) storages.push_back(storage);
  }
  return storages;
}

}  // namespace

KeptOnHost::KeptOnHost(const std::vector<at::Tensor>& values,
                       std::shared_ptr<HostSlots> slots)
    : storages_(storages_of(values)),
      slots_(std::move(slots)),
      device_(values.front().device()) {
  int64_t num_bytes = 0;
  for (const c10::Storage& storage : storages_) {
    offsets_.push_back(num_bytes);
    num_bytes += offload_host_bytes(size_of(storage));
  }
  const c10::Stream stream = slots_->stream(device_);
  slot_ = slots_->take(num_bytes, device_, capture_id(device_));
  StreamEvent computed;
  computed.record(compute());
  computed.block(stream);
  {
    const StreamScope scope(stream);
    for (size_t i = 0; i < storages_.size(); ++i) {
      part(i).copy_(bytes_of(storages_[i]), /*non_blocking=*/true);
    }
  }
  copied_.record(stream);
}

KeptOnHost::~KeptOnHost() {
  try {
    // A graph that dies gives the memory to whoever asks for it next.
    wait();
    end();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost
  }
}

c10::Stream KeptOnHost::compute() const { return current_stream(device_); }

at::Tensor KeptOnHost::part(size_t i) const {
  return slot_.bytes.narrow(0, offsets_[i], size_of(storages_[i]));
}

void KeptOnHost::wait() {
  if (place_ == Place::copying_out || place_ == Place::coming_back) {
    copied_.block(compute());
  }
}

void KeptOnHost::settle() {
  if (place_ != Place::copying_out) return;
  wait();
  for (const c10::Storage& storage : storages_) take_memory(storage);
  place_ = Place::on_host;
}

void KeptOnHost::start_return() {
  if (place_ != Place::on_host) return;
  std::vector<at::Tensor> memory;  // all of it, or an error
  for (const c10::Storage& storage : storages_) {
    memory.push_back(
        at::empty({size_of(storage)},
                  at::TensorOptions(at::kByte).device(storage.device())));
  }
  returning_ = std::move(memory);
  const c10::Stream stream = slots_->stream(device_);
  // Whoever had this memory before has to be done with it.
  StreamEvent free;
  free.record(compute());
  free.block(stream);
  {
    const StreamScope scope(stream);
    for (size_t i = 0; i < returning_.size(); ++i) {
      returning_[i].copy_(part(i), /*non_blocking=*/true);
    }
  }
  copied_.record(stream);
  place_ = Place::coming_back;
}

void KeptOnHost::fill() {
  if (place_ == Place::on_device) return;
  start_return();
  wait();
  for (size_t i = 0; i < returning_.size(); ++i) {
    give_memory(storages_[i], returning_[i].storage());
  }
  end();
}

void KeptOnHost::end() {
  if (place_ == Place::on_device) return;
  place_ = Place::on_device;
  returning_.clear();
  storages_.clear();
  if (slot_.bytes.defined()) slots_->give_back(std::exchange(slot_, {}));
}

}  // namespace tessera::internal
