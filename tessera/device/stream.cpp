#include "tessera/device/stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera {

namespace {
c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}
}  // namespace

c10::Stream current_stream(c10::Device device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return guard_of(device).getStream(device);
}

c10::Stream make_stream(c10::Device device, StreamPriority priority) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  return guard_of(device).getStreamFromGlobalPool(
      device, priority == StreamPriority::high);
}

void set_current_device(c10::Device device) {
  if (!device.is_cpu()) guard_of(device).setDevice(device);
}

void StreamEvent::record(const c10::Stream& stream) {
  if (stream.device().is_cpu()) return;
  if (!event_) event_.emplace(stream.device_type());
  event_->record(stream);
}

void StreamEvent::block(const c10::Stream& stream) {
  if (event_) event_->block(stream);
}

void StreamEvent::synchronize() {
  if (event_) event_->synchronize();
}

bool StreamEvent::reached() const { return !event_ || event_->query(); }

StreamScope::StreamScope(const c10::Stream& stream) {
  if (!stream.device().is_cpu()) guard_.emplace(stream);
}

}  // namespace tessera
