// How one parameter is spread over ranks: what its shard carries, and what
// optimizers, clipping and checkpoints need to know of it.
//
// A shard is a piece of a flat master tensor:
//
//   FlatMaster of one group on this rank (1-D, one dtype)
//   | p0 .......... | p2 ... |gap| p1 ... | padding |
//
// Pieces are listed by offset. A gap or padding belongs to nobody and holds
// zeros, in the master and in its gradient; an elementwise update may run over
// it as long as it maps zero gradient at zero value to zero.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/tensor/box.h"

namespace tessera {

class Communicator;
class StorageOwner;

struct FlatPiece {
  int64_t offset = 0;  // elements, in the flat master
  int64_t numel = 0;   // 0 for an empty shard
};

/// The norms of the chunks of a part of a flat gradient.
struct NormsOfPart {
  FlatPiece part;
  std::vector<at::Tensor> norms;
};

/// The flat master tensor of one group on this rank. Owned by its unit and by
/// its shards.
struct FlatMaster {
  at::Tensor data;  // 1-D, master dtype, not gated; its version counter is the
                    // one of all its shards
  std::vector<FlatPiece> pieces;  // by offset, those with numel > 0
  // Its gradients are gone when backward returns (step_in_backward).
  bool steps_in_backward = false;
  // `data` in the dtype that gathers send, where the unit keeps such a copy
  // (GatherCopy::kept); laid out as `data`. Undefined otherwise.
  at::Tensor copy;

  /// Whether `copy` is there and holds what `data` does. A write to `data` or a
  /// shard ends that, unless the writer keeps `copy` up to date and says so.
  [[nodiscard]] bool copy_is_current() const;
  void note_copy_is_current();
  /// Makes room for it, unless it is there; of unset values.
  void ensure_copy(c10::ScalarType dtype);
  /// What gathers send: the copy, or `data` where there is none.
  [[nodiscard]] const at::Tensor& sent() const {
    return copy.defined() ? copy : data;
  }
  /// Casts `data` to it, on the current stream, unless it is current or there
  /// is none.
  void refresh_copy();

  /// The flat gradient, laid out as `data` (1-D, same numel and dtype, not
  /// gated), or undefined when there is none. Its memory lives as long as a
  /// shard's `.grad` is a piece of it, so `zero_grad` frees it. Its version
  /// counter is the one of all those pieces.
  [[nodiscard]] at::Tensor grad() const;
  /// A part of it in another shape; `grad` must be there.
  [[nodiscard]] at::Tensor grad_part(int64_t offset, at::IntArrayRef sizes,
                                     at::IntArrayRef strides) const;
  void set_grad(const at::Tensor& grad);

  /// What `grad_norms` finds from now on: 2-norms of parts of the gradient as
  /// it is now, of each its chunks' (see chunk_norms.h), 0-dim.
  void keep_grad_norms(std::vector<NormsOfPart> norms);
  void forget_grad_norms() { grad_norms_.clear(); }
  /// The norms kept for this very part. None once the gradient was replaced or
  /// an operator has changed it, as its version counter or the gate tells; nor
  /// where what is recorded into a graph would read what was not, or the other
  /// way round.
  [[nodiscard]] std::vector<at::Tensor> grad_norms(const FlatPiece& part) const;

 private:
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  /// Moves with each write to the gradient that is seen.
  struct GradState {
    uint32_t version = 0;
    uint64_t gated_writes = 0;
    bool captured = false;
    bool operator==(const GradState& other) const = default;
  };
  [[nodiscard]] GradState grad_state() const;

  std::optional<uint32_t> copy_version_;
  WeakStorage grad_storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  c10::VariableVersion grad_version_{/*version=*/0};
  std::vector<NormsOfPart> grad_norms_;
  GradState grad_norms_state_;
};

struct Spread {
  std::string name;                   // fully qualified, of the parameter
  std::vector<int64_t> global_sizes;  // of the full parameter
  std::vector<Box> boxes;             // this rank's part; empty for none
  FlatPiece piece;                    // where that part lies
  // Of the shard over that piece; empty: contiguous. A parameter cut along
  // another dim than 0 lies there with that dim first.
  std::vector<int64_t> strides;
  std::shared_ptr<FlatMaster> master;
  // Ranks over which the parameter is cut: a norm over all of it sums the
  // ranks' parts over this communicator. Null when every rank holds all of it.
  std::shared_ptr<Communicator> communicator;
  // All ranks that hold a part or a copy of it: those that save and load it
  // together.
  std::shared_ptr<Communicator> holders;
  // The unit that gathers it.
  std::weak_ptr<StorageOwner> owner;
};

/// What `parameter` carries, or null for a plain tensor.
[[nodiscard]] const Spread* spread_of(const at::Tensor& parameter);

/// An alias of a shard (or of its gradient) that the gate does not guard: reads
/// and writes this rank's part only, for those who mean it. A plain tensor
/// comes back as it is. Shares data and version counter; has no autograd
/// history.
[[nodiscard]] at::Tensor local(const at::Tensor& shard);

}  // namespace tessera
