// The ways from a rank to its peers in one communicator. Inside comm only.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>

#include "tessera/comm/host_link.h"

namespace tessera {

struct Routes {
  c10::intrusive_ptr<c10d::Backend> backend;  // empty in a group of one
  std::shared_ptr<HostLink> link;             // empty where nothing is shared
  HostChannels channels;  // by peer; empty where it goes by the backend
};

}  // namespace tessera
