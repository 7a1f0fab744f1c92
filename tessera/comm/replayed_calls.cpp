#include "tessera/comm/replayed_calls.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/comm/below_autograd.h"
#include "tessera/device/stream.h"

namespace tessera {

namespace {

/// Later work of `stream` comes behind what `earlier` has now.
void wait(const c10::Stream& stream, const c10::Stream& earlier) {
  StreamEvent now;
  now.record(earlier);
  now.block(stream);
}

}  // namespace

void ReplayedCalls::prepare(c10::Device device) {
  const std::lock_guard lock(mutex_);
  prepared_ = true;
  calls_.clear();
  lanes_.clear();
  num_calls_.clear();
  if (numbers_.defined()) return;
  const BelowAutograd below_autograd;
  notes_ = make_stream(device, StreamPriority::normal);
  const auto on_device = at::TensorOptions(at::kLong).device(device);
  numbers_ = at::arange(kMostCalls + 1, on_device);
  zeros_ = at::zeros({kMostLanes}, on_device);
  replays_ = at::zeros({1}, on_device);
  seen_ =
      at::zeros({kMostLanes + 1},
                at::TensorOptions(at::kLong).pinned_memory(device.is_cuda()));
}

void ReplayedCalls::begin() {
  const BelowAutograd below_autograd;
  open_ = true;
  seen_.narrow(0, 0, kMostLanes).copy_(zeros_, /*non_blocking=*/true);
}

void ReplayedCalls::end() {
  const BelowAutograd below_autograd;
  open_ = false;
  // It is part of the capture once something was noted.
  if (!calls_.empty()) wait(current_stream(notes_->device()), *notes_);
  replays_.add_(1);
  seen_.narrow(0, kMostLanes, 1).copy_(replays_, /*non_blocking=*/true);
}

size_t ReplayedCalls::lane_of(const std::string& communicator) {
  const auto at = std::find(lanes_.begin(), lanes_.end(), communicator);
  const auto lane = static_cast<size_t>(at - lanes_.begin());
  if (at == lanes_.end()) {
    lanes_.push_back(communicator);
    num_calls_.push_back(0);
  }
  return lane;
}

void ReplayedCalls::note(const CollectiveEntry& entry) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  const size_t lane = lane_of(entry.communicator);
  const int64_t number = ++num_calls_[lane];
  if (lane >= kMostLanes || number > kMostCalls) return;
  calls_.push_back({entry, lane, number});
  const BelowAutograd below_autograd;
  wait(*notes_, current_stream(notes_->device()));
  const StreamScope scope(*notes_);
  seen_.narrow(0, static_cast<int64_t>(lane), 1)
      .copy_(numbers_.narrow(0, number, 1), /*non_blocking=*/true);
}

// The device writes it at any time.
std::vector<int64_t> ReplayedCalls::read() const {
  const volatile int64_t* data = seen_.const_data_ptr<int64_t>();
  return {data, data + seen_.numel()};
}

void ReplayedCalls::launch() {
  const std::lock_guard lock(mutex_);
  if (read().back() == launched_) changed_ = Clock::now();
  ++launched_;
}

std::optional<CollectiveEntry> ReplayedCalls::overdue(
    std::chrono::milliseconds patience) {
  const std::lock_guard lock(mutex_);
  if (!seen_.defined()) return std::nullopt;
  std::vector<int64_t> now = read();
  if (now != last_read_) changed_ = Clock::now();
  last_read_ = std::move(now);
  if (last_read_.back() >= launched_ || Clock::now() - changed_ < patience) {
    return std::nullopt;
  }
  const auto waits = std::find_if(
      calls_.begin(), calls_.end(),
      [&](const Call& call) { return call.number > last_read_[call.lane]; });
  CollectiveEntry entry;
  entry.communicator = "step";
  entry.kind = "replay";
  if (waits != calls_.end()) entry = waits->entry;
  entry.started = changed_;
  return entry;
}

}  // namespace tessera
