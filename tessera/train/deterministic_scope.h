// For two runs that give the same bits.
#pragma once

#include <ATen/Context.h>

namespace tessera::train {

/// Sets LibTorch's choice of algorithms, and puts it back.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool on)
      : before_(at::globalContext().deterministicAlgorithms()) {
    if (on) at::globalContext().setDeterministicAlgorithms(true, false);
  }
  ~DeterministicScope() {
    at::globalContext().setDeterministicAlgorithms(before_, false);
  }
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool before_;
};

}  // namespace tessera::train
