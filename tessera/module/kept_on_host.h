// Some values of a forward, from when they are copied to the host until they
// are back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/device/stream.h"
#include "tessera/module/host_slots.h"

namespace tessera::internal {

class KeptOnHost {
 public:
  /// Starts to copy them out.
  KeptOnHost(const std::vector<at::Tensor>& values,
             std::shared_ptr<HostSlots> slots);
  ~KeptOnHost();
  KeptOnHost(const KeptOnHost&) = delete;
  KeptOnHost& operator=(const KeptOnHost&) = delete;

  /// Takes their memory on the device: its later work waits for the copies.
  void settle();
  /// Starts to copy them back, if they are away.
  void start_return();
  /// They are to be read now.
  void fill();

 private:
  enum class Place : uint8_t { copying_out, on_host, coming_back, on_device };

  /// The part of the slot that belongs to each storage.
  [[nodiscard]] at::Tensor part(size_t i) const;
  [[nodiscard]] c10::Stream compute() const;
  /// Copies that may still be under way come before what is done now.
  void wait();
  void end();

  std::vector<c10::Storage> storages_;
  std::vector<at::Tensor> returning_;  // memory of storages that come back
  std::vector<int64_t> offsets_;
  std::shared_ptr<HostSlots> slots_;
  HostSlot slot_;
  c10::Device device_;
  StreamEvent copied_;
  Place place_ = Place::copying_out;
};

}  // namespace tessera::internal
