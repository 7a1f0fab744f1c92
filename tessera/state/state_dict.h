// What an object wants saved: tensors and values, each at the end of a path.
//
//   model      weight        float32 [5, 3], of which this rank holds rows 0-2
//   optim      state weight exp_avg ...
//   step       1000
//
// Names and nesting are those of PyTorch's get_state_dict, so that a checkpoint
// means the same to both.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tessera/state/path.h"
#include "tessera/state/peers.h"
#include "tessera/state/value.h"
#include "tessera/tensor/box.h"

namespace tessera {

class Communicator;

/// A tensor of which this rank holds some boxes.
struct StateTensor {
  at::Tensor local;            // its boxes end to end, row-major; not gated. A
                               // plain tensor may have any strides
  std::vector<int64_t> sizes;  // of the whole tensor
  std::vector<Box> boxes;      // none for an empty part
};

/// `tensor` as a shard, or a plain tensor, is saved. Shares memory.
/// Errors: InvalidState for a meta tensor.
[[nodiscard]] StateTensor state_tensor(const at::Tensor& tensor);

/// A tensor that lies like `parameter` (a moment of an optimizer): its part of
/// the same boxes.
[[nodiscard]] StateTensor state_tensor_like(const at::Tensor& parameter,
                                            const at::Tensor& local);

using Leaf = std::variant<StateTensor, Value>;

struct StateEntry {
  Path path;
  Leaf leaf;
};

using StateDict = std::vector<StateEntry>;

/// Adds `value` at `path` the way PyTorch flattens: dicts, and lists that hold
/// a dict somewhere, are descended into; all else is a leaf; keys become texts.
void add_value(StateDict& dict, const Path& path, const Value& value);

/// The nested value whose leaves are `leaves`.
/// Errors: CheckpointError when one's path leads through another.
[[nodiscard]] Value nested_value(
    const std::vector<std::pair<Path, Value>>& leaves);

/// What a checkpoint holds below an object's name. Keys and paths begin there.
struct Stored {
  std::set<std::string> tensors = {};            // keys
  std::map<std::string, Value> values = {};      // by key
  std::map<std::string, Path> value_paths = {};  // of the same keys

  /// All values as they were nested. Errors: CheckpointError when the name of
  /// one is the name of others, too.
  [[nodiscard]] Value nested() const;
  /// The same; what of `own` was not stored stays.
  [[nodiscard]] Value nested_over(const StateDict& own) const;
};

/// Something with a state of its own: a model, an optimizer, a data loader.
class Stateful {
 public:
  virtual ~Stateful() = default;

  /// The state to save. Tensors may share memory with the object.
  [[nodiscard]] virtual StateDict state_dict() = 0;

  /// Where a load puts tensors: those that `stored` should hold, and memory to
  /// fill. Values in it are only names that `stored` should hold.
  [[nodiscard]] virtual StateDict targets(const Stored& stored) = 0;

  /// Takes what was loaded: tensors in `filled`, which `targets` gave, and the
  /// values of `stored`.
  virtual void loaded(const StateDict& filled, const Stored& stored) = 0;

  /// Connects the ranks over which its tensors are cut, or null.
  [[nodiscard]] virtual std::shared_ptr<Communicator> communicator() {
    return nullptr;
  }

  /// Where it is divided among ranks in another way, these; else nothing.
  [[nodiscard]] virtual std::optional<Peers> peers() { return {}; }
};

}  // namespace tessera
