#include "tessera/checkpoint/host_copy.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "tessera/device/host_memory.h"
#include "tessera/state/box_view.h"

namespace tessera::checkpoint {
namespace {

int64_t room_of(const at::Tensor& tensor) {
  return aligned(static_cast<int64_t>(tensor.nbytes()));
}

c10::Device device_of(const std::vector<at::Tensor>& tensors) {
  const auto found = std::ranges::find_if(
      tensors, [](const at::Tensor& tensor) { return !tensor.is_cpu(); });
  return found == tensors.end() ? c10::Device(c10::kCPU) : found->device();
}

}  // namespace

void HostCopy::reserve(int64_t num_bytes, c10::Device device) {
  if (bytes_.defined() && bytes_.numel() >= num_bytes) return;
  bytes_.reset();  // first, so that there are never both
  bytes_ = make_host_bytes(num_bytes, device);
}

std::vector<at::Tensor> HostCopy::begin(
    const std::vector<at::Tensor>& sources) {
  on_host_.clear();  // of a save that failed before it came to its data
  wait();
  const c10::Device device = device_of(sources);
  if (!device.is_cpu() && !stream_) {
    stream_ = make_stream(device, StreamPriority::normal);
  }
  int64_t num_bytes = 0;
  for (const at::Tensor& source : sources) num_bytes += room_of(source);
  reserve(num_bytes, device);
  StreamEvent ready;
  ready.record(current_stream(device));
  const c10::Stream stream = stream_.value_or(current_stream(device));
  ready.block(stream);
  const StreamScope scope(stream);
  std::vector<at::Tensor> copies;
  int64_t at = 0;
  for (const at::Tensor& source : sources) {
    copies.push_back(
        elements_at(bytes_, at, source.scalar_type(), source.numel())
            .view(source.sizes()));
    at += room_of(source);
    if (source.is_cpu()) {
      on_host_.push_back({copies.back(), source});
    } else {
      copies.back().copy_(source, /*non_blocking=*/true);
      on_device_.push_back(source);
    }
  }
  copied_.record(stream);
  return copies;
}

void HostCopy::copy_on_host() {
  const std::lock_guard lock(mutex_);
  const at::NoGradGuard no_grad;
  for (OnHost& each : on_host_) each.copy.copy_(each.source);
  on_host_.clear();
}

void HostCopy::block_later_work() {
  copy_on_host();
  if (stream_) copied_.block(current_stream(stream_->device()));
}

void HostCopy::wait() {
  copy_on_host();
  if (!stream_) return;
  set_current_device(stream_->device());
  copied_.synchronize();
  const std::lock_guard lock(mutex_);
  on_device_.clear();
}

}  // namespace tessera::checkpoint
