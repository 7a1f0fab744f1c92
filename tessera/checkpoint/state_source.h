// A State as the files see it: what it offers, and its bytes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/host_copy.h"
#include "tessera/checkpoint/save_plan.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/comm/world.h"
#include "tessera/state/peers.h"
#include "tessera/state/state.h"

namespace tessera::checkpoint {

/// The ranks that save or load `state` together.
/// Errors: InvalidArgument when this process is one of several ranks, and
///         neither `world` nor a shard says which.
[[nodiscard]] Peers peers_of(const State& state, const World& world);

/// A state, taken apart for saving. Tensors share memory with the state.
class StateSource {
 public:
  explicit StateSource(const State& state);

  [[nodiscard]] const Offer& offer() const { return offer_; }
  /// Bytes on a GPU are fetched piece by piece, through pinned memory, after
  /// the work that the current stream has now.
  [[nodiscard]] WriteSource source() const;
  /// Begins to copy what `items` write to `memory`: when the copies are made,
  /// the state may change.
  void snapshot(const std::vector<WriteItem>& items, HostCopy& memory);

 private:
  [[nodiscard]] at::Tensor box_of(const std::string& key, const Box& box) const;

  Offer offer_;
  std::map<std::string, StateTensor> tensors_;
  std::map<std::string, std::string> value_items_;  // complete items
};

}  // namespace tessera::checkpoint
