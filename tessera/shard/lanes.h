// The communicators and streams that all groups of one mesh share.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "tessera/comm/communicator.h"

namespace tessera {

struct ShardLanes {
  std::shared_ptr<Communicator> gather;
  std::shared_ptr<Communicator> reduce;
  std::shared_ptr<Communicator> control;
  c10::Device device = c10::kCPU;
  c10::Stream gather_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  c10::Stream reduce_stream{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};

  [[nodiscard]] int rank() const { return gather->rank(); }
  [[nodiscard]] int size() const { return gather->size(); }
};

}  // namespace tessera
