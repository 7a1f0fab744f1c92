#include "tessera/module/host_slots.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/device/capture.h"
#include "tessera/device/host_memory.h"
#include "tessera/device/stream.h"

namespace tessera::internal {

namespace {

int64_t size_of(const HostSlot& slot) { return slot.bytes.numel(); }

}  // namespace

HostSlots::~HostSlots() {
  if (!stream_ || stream_->device().is_cpu()) return;
  try {
    stream_->synchronize();  // which may still copy to and from them
  } catch (...) {            // NOLINT(bugprone-empty-catch): the device is lost
  }
}

c10::Stream HostSlots::stream(c10::Device device) {
  const std::scoped_lock lock(mutex_);
  if (!stream_) stream_ = make_stream(device, StreamPriority::normal);
  require<InvalidArgument>(stream_->device() == device, [&] {
    return str("HostOffload: values are on ", device.str(),
               ", those before were on ", stream_->device().str(),
               "; give each device a HostOffload of its own.");
  });
  return *stream_;
}

std::optional<HostSlot> HostSlots::take_free(
    int64_t num_bytes, const std::optional<uint64_t>& capture) {
  auto best = free_.end();
  for (auto slot = free_.begin(); slot != free_.end(); ++slot) {
    const bool mine = !slot->capture || slot->capture == capture ||
                      is_graph_gone(*slot->capture);
    if (!mine || size_of(*slot) < num_bytes) continue;
    if (best == free_.end() || size_of(*slot) < size_of(*best)) best = slot;
  }
  if (best == free_.end()) return std::nullopt;
  HostSlot taken = std::move(*best);
  free_.erase(best);
  taken.capture = capture;
  return taken;
}

void HostSlots::drop_largest_free() {
  auto largest = free_.end();
  for (auto slot = free_.begin(); slot != free_.end(); ++slot) {
    if (slot->capture && !is_graph_gone(*slot->capture)) continue;
    if (largest == free_.end() || size_of(*largest) < size_of(*slot)) {
      largest = slot;
    }
  }
  if (largest == free_.end()) return;
  if (!stream_->device().is_cpu()) stream_->synchronize();
  num_bytes_ -= size_of(*largest);
  free_.erase(largest);
}

HostSlot HostSlots::take(int64_t num_bytes, c10::Device device,
                         const std::optional<uint64_t>& capture) {
  const std::scoped_lock lock(mutex_);
  if (auto slot = take_free(num_bytes, capture)) return *std::move(slot);
  require<InvalidState>(!capture, [&] {
    return str("HostOffload: a capture needs ", num_bytes,
               " bytes of pinned memory more than the steps before it had, "
               "and none can be had in a capture. Run the step once before.");
  });
  drop_largest_free();
  HostSlot slot{make_host_bytes(num_bytes, device), capture};
  num_bytes_ += num_bytes;
  return slot;
}

void HostSlots::give_back(HostSlot slot) {
  const std::scoped_lock lock(mutex_);
  free_.push_back(std::move(slot));
}

int64_t HostSlots::num_bytes() const {
  const std::scoped_lock lock(mutex_);
  return num_bytes_;
}

}  // namespace tessera::internal
