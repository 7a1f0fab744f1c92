#include "tests/device/steady/watch.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/torch.h>

#include <cstdio>

#include "tessera/base/error.h"

namespace device_steady {
namespace {

using c10::cuda::SyncDebugMode;

constexpr int64_t kBusyCycles = 1'000'000'000;

std::string counted(int64_t number, const char* what) {
  return tessera::str(number, " ", what, number == 1 ? "" : "s");
}

bool says(const char* what, bool good) {
  if (!good) std::printf("FAILED the check of %s notices nothing\n", what);
  return good;
}

bool notices_allocations(c10::Device device) {
  const DriverCalls before = driver_calls(device);
  (void)torch::empty({int64_t{1} << 30},
                     torch::dtype(torch::kByte).device(device));
  const bool good = driver_calls(device).allocations > before.allocations;
  c10::cuda::CUDACachingAllocator::emptyCache();
  return says("driver allocations", good);
}

bool notices_reads(c10::Device device) {
  const torch::Tensor value = torch::ones({}, device);
  bool raised = false;
  try {
    const WaitsAreErrors scope;
    (void)value.item<float>();
  } catch (const c10::Error&) {
    raised = true;
  }
  return says("waits inside of LibTorch", raised);
}

bool notices_waits(c10::Device device) {
  const BusyDevice busy(device);
  const bool was_busy = busy.still_busy();
  wait_for_device();
  return says("waits", was_busy && !busy.still_busy());
}

}  // namespace

DriverCalls driver_calls(c10::Device device) {
  const auto stats =
      c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return {.allocations = stats.num_device_alloc,
          .frees = stats.num_device_free,
          .retries = stats.num_alloc_retries,
          .waits = stats.num_sync_all_streams};
}

std::string describe(const DriverCalls& before, const DriverCalls& after) {
  return tessera::str(
      counted(after.allocations - before.allocations, "driver allocation"),
      ", ", counted(after.frees - before.frees, "free"), ", ",
      counted(after.retries - before.retries, "retried allocation"), ", ",
      counted(after.waits - before.waits, "wait for all streams"));
}

WaitsAreErrors::WaitsAreErrors() {
  c10::cuda::warning_state().set_sync_debug_mode(SyncDebugMode::L_ERROR);
}

WaitsAreErrors::~WaitsAreErrors() {
  c10::cuda::warning_state().set_sync_debug_mode(SyncDebugMode::L_DISABLED);
}

struct BusyDevice::Mark {
  at::cuda::CUDAEvent event;
};

BusyDevice::BusyDevice(c10::Device device) : mark_(std::make_unique<Mark>()) {
  at::cuda::sleep(kBusyCycles);
  mark_->event.record(at::cuda::getCurrentCUDAStream(device.index()));
}

BusyDevice::~BusyDevice() = default;

bool BusyDevice::still_busy() const { return !mark_->event.query(); }

void wait_for_device() { c10::cuda::device_synchronize(); }

bool notices_all(c10::Device device) {
  const bool allocations = notices_allocations(device);
  const bool reads = notices_reads(device);
  return notices_waits(device) && allocations && reads;
}

}  // namespace device_steady
