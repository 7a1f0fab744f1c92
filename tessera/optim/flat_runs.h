// Pieces of flat master tensors, joined into the ranges that one kernel call
// can work on.
//
//   master    | p0 | p1 |gap| p2 | p3 | padding |
//   added       p0   p1       p2
//   touching  '-- run --'   '-run'
//   bridged   '------- run -------'
//
// A run never covers a piece that was not added, nor joins pieces of unlike
// kinds. Fewer and longer runs mean fewer kernels and less host work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tessera/tensor/spread.h"

namespace tessera {

/// `numel` elements from `offset`, of one flat master; pieces of one kind.
struct FlatRun {
  std::shared_ptr<FlatMaster> master;
  at::Tensor flat_gradient;  // of the whole master
  int64_t offset = 0;
  int64_t numel = 0;
  size_t kind = 0;

  /// This range of a 1-D tensor that is laid out as the master. Shares data
  /// and version counter; has no autograd history.
  [[nodiscard]] at::Tensor of(const at::Tensor& flat) const;
};

/// Whether a run may cover the zeros between two neighbours of the master.
enum class Gaps { apart, bridged };

class FlatRuns {
 public:
  /// Adds the piece of `spread` if `gradient` is that piece of the master's
  /// flat gradient; returns whether it is. A gradient that came by autograd (a
  /// penalty on the shard itself), or that the caller assigned, is not. A piece
  /// without elements adds nothing. Each piece once.
  /// Errors: InvalidState when the piece is not listed in its master.
  [[nodiscard]] bool add(const Spread& spread, const at::Tensor& gradient,
                         size_t kind = 0);

  /// Runs by master (in the order in which masters first came) and offset, so
  /// the same on every execution.
  [[nodiscard]] std::vector<FlatRun> join(Gaps gaps) const;

 private:
  struct Master {
    std::shared_ptr<FlatMaster> master;
    at::Tensor gradient;
  };
  struct Member {
    size_t master;   // index into masters_
    size_t ordinal;  // index into FlatMaster::pieces
    size_t kind;
  };
  [[nodiscard]] size_t number_of(const std::shared_ptr<FlatMaster>& master);
  [[nodiscard]] const FlatPiece& piece(const Member& member) const;
  [[nodiscard]] bool joins(const Member& left, const Member& right,
                           Gaps gaps) const;

  std::vector<Master> masters_;
  std::unordered_map<const FlatMaster*, size_t> numbers_;
  std::vector<Member> members_;
};

}  // namespace tessera
