// What a steady step must not do: ask the driver for memory, and let the host
// wait for the device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

namespace device_steady {

/// What the caching allocator has asked of the driver so far.
struct DriverCalls {
  int64_t allocations = 0;
  int64_t frees = 0;
  int64_t retries = 0;  // allocations that failed until the cache was emptied
  int64_t waits = 0;    // for the streams that still used freed memory
  bool operator==(const DriverCalls&) const = default;
};
[[nodiscard]] DriverCalls driver_calls(c10::Device device);
/// "2 allocations, 1 wait"; of what came after `before`.
[[nodiscard]] std::string describe(const DriverCalls& before,
                                   const DriverCalls& after);

/// LibTorch raises where it would wait for the device, until the scope ends.
class WaitsAreErrors {
 public:
  WaitsAreErrors();
  ~WaitsAreErrors();
  WaitsAreErrors(const WaitsAreErrors&) = delete;
  WaitsAreErrors& operator=(const WaitsAreErrors&) = delete;
};

/// Keeps the current stream busy for about half a second. What is issued to it
/// later cannot be done before, so a host that waits for any of that, in
/// whatever way, comes back to a device that is done.
class BusyDevice {
 public:
  explicit BusyDevice(c10::Device device);
  ~BusyDevice();
  [[nodiscard]] bool still_busy() const;

 private:
  struct Mark;
  std::unique_ptr<Mark> mark_;
};

/// Waits for all streams.
void wait_for_device();

/// Whether each of these notices what it is there for; prints a line for each
/// that does not.
[[nodiscard]] bool notices_all(c10::Device device);

}  // namespace device_steady
