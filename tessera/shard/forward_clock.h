// Which forward passes saw which values of a unit's weights.
//
// A thread numbers the autograd nodes that it makes. Nodes older than the last
// read of values that have been written since belong to a forward whose
// backward would compute with other weights than it did.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>

namespace tessera {

class ForwardClock {
 public:
  /// An operator of a forward pass has read the values.
  void note_read();
  /// They are about to be gathered anew, written since the last time.
  void note_new_values() { last_of_old_ = last_read_; }
  /// Whether `node` is of a forward pass that saw other values than those that
  /// are, or will be, gathered now.
  [[nodiscard]] bool saw_other_values(const torch::autograd::Node& node) const;

 private:
  struct Time {
    uint64_t thread = 0;
    uint64_t sequence = 0;
  };
  Time last_read_;
  Time last_of_old_;
};

}  // namespace tessera
