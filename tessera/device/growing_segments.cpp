#include "tessera/device/growing_segments.h"

#include <ATen/ops/empty.h>
#include <c10/core/AllocatorConfig.h>

#include <exception>

#include "tessera/base/environment.h"
#include "tessera/base/log.h"

namespace tessera {

namespace {

/// Enough to be a segment of the kind that grows.
constexpr int64_t kTrialBytes = 32 << 20;

using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;

}  // namespace

void prefer_growing_segments(c10::Device device) {
  if (!device.is_cuda() || environment::text("PYTORCH_ALLOC_CONF") ||
      environment::text("PYTORCH_CUDA_ALLOC_CONF")) {
    return;
  }
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
  try {
    (void)at::empty({kTrialBytes}, at::TensorOptions(at::kByte).device(device));
  } catch (const std::exception&) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
    log_warning(
        "segments of the allocator cannot grow here (expandable_segments): "
        "more memory than needed may be reserved.");
  }
}

PlainSegments::PlainSegments()
    : growing_(Settings::use_expandable_segments()),
      settings_(c10::CachingAllocator::getAllocatorSettings()) {
  if (growing_) {
    c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  }
}

PlainSegments::~PlainSegments() {
  if (growing_) c10::CachingAllocator::setAllocatorSettings(settings_);
}

}  // namespace tessera
