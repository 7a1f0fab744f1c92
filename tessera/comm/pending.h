// What stands behind a Pending. Inside comm only.
#pragma once

#include "tessera/comm/communicator.h"

namespace tessera {

class Pending::Impl {
 public:
  virtual ~Impl() = default;

  /// Returns when the result is there. Called once.
  virtual void wait() = 0;

  /// The same for a caller that no longer wants the result.
  virtual void drain() noexcept = 0;
};

}  // namespace tessera
