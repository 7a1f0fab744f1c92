// What users choose when they shard a module. Names are FSDP2's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/shard/backward_overlap.h"
#include "tessera/shard/gather_transform.h"

namespace tessera {

/// What becomes of a unit's full parameters after its forward.
enum class Reshard {
  automatic,  // always, but a unit with units below it, or the only one, keeps
              // them (it is the first one that backward needs)
  always,     // freed; gathered again in backward
  never,      // kept until backward is through: faster, costs the full weights
};

/// A `Reshard`, or how many ranks keep the full parameters together until
/// backward: after forward each keeps one of `ranks` equal parts of them, and
/// backward gathers among those ranks alone (`ranks` neighbours along the shard
/// axis: of one host, say). 1 is Reshard::never, all ranks Reshard::always.
class ReshardAfterForward {
 public:
  ReshardAfterForward(Reshard policy) : policy_(policy) {}
  ReshardAfterForward(int ranks) : policy_(Reshard::always), ranks_(ranks) {}
  // A bool would be taken for a number of ranks.
  template <std::same_as<bool> B>
  ReshardAfterForward(B) = delete;

  [[nodiscard]] Reshard policy() const { return policy_; }
  [[nodiscard]] std::optional<int> ranks() const { return ranks_; }

 private:
  Reshard policy_;
  std::optional<int> ranks_;
};

enum class CastInputs { on, off };

struct MixedPrecisionPolicy {
  // Dtype of full parameters, hence of the gather and of the compute. Unset:
  // the parameter's own. Shards, their gradients and the optimizer keep the
  // parameter's own dtype.
  std::optional<c10::ScalarType> param_dtype = {};
  // Dtype in which gradients are summed over ranks. Unset: that of the computed
  // gradient, i.e. param_dtype.
  std::optional<c10::ScalarType> reduce_dtype = {};
  // Dtype of the outputs of `call(module, ...)`. Unset: as computed. A unit
  // with it must be called through `call`.
  std::optional<c10::ScalarType> output_dtype = {};
  // Floating inputs are cast to param_dtype: by `call` at the module's door,
  // otherwise by the operators that read a parameter.
  CastInputs cast_forward_inputs = CastInputs::on;
};

/// Along which dim a parameter is cut. It lies in memory with that dim first,
/// so for another dim than 0 its full parameter is a transposed view: right for
/// every operator, though `view(-1)` refuses it. Any size, divisible or not.
struct Shard {
  int64_t dim = 0;  // negative: counted from the end
};
using ShardPlacementFn =
    std::function<std::optional<Shard>(const at::Tensor& parameter)>;

/// Shards, their gradients and the optimizer live in host memory: gathers copy
/// the shards to the device first, and reduced gradients are copied back while
/// backward goes on. On a CPU mesh that is so anyway, and nothing is pinned.
/// Shards may be written on the host after a backward, or after a forward
/// without grad mode: until then copies of them may still be under way.
struct CPUOffloadPolicy {
  bool pin_memory = true;  // false: pageable memory; copies do not overlap
};

/// Whether the shards exist a second time in the param_dtype, so that gathers
/// send them as they are and need not cast them, twice a step. Tessera's AdamW
/// writes the copy in its own pass; after any other write the next gather casts
/// anew. Costs param_dtype's bytes for each element of the shards. Where that
/// is the dtype of the shards, there is nothing to copy.
enum class GatherCopy { none, kept };

/// Whether all ranks' parameters are compared when they are sharded: each rank
/// keeps its part of its own values, so unequal starts would be mixed silently.
enum class StartCheck { on, off };

/// For tests: freed and fresh memory is filled with NaN.
enum class Debug { none, poison_memory };

struct FullyShardOptions {
  // Behaviour.
  // 1-D: parameters are cut over its ranks. 2-D (HSDP): cut along one axis and
  // replicated along the other. There is no implicit world.
  DeviceMesh mesh = {};
  ReshardAfterForward reshard_after_forward = Reshard::automatic;
  MixedPrecisionPolicy mp_policy = {};
  // Stay whole and local: not sharded, gradients not reduced. Give the same
  // list to every call in the tree.
  std::vector<at::Tensor> ignored_params = {};
  // Called once for each parameter; nothing given, or returned, is Shard{0}.
  ShardPlacementFn shard_placement_fn = {};
  std::optional<CPUOffloadPolicy> offload_policy = {};
  // What travels in gathers, such as float8_gather(); null: the compute dtype.
  std::shared_ptr<GatherTransform> gather_transform = {};
  GatherCopy gather_copy = GatherCopy::none;
  StartCheck start_check = StartCheck::on;
  // Of a 2-D mesh, the axis of the replicas. Empty: what the axes' names say,
  // or the first axis (mesh_roles.h).
  std::string replicate_axis = {};
  // How many units ahead of the one in use gathers are started, in forward and
  // in backward, once a pass has shown the order. Each takes the memory of its
  // full parameters earlier. Unset: 1 on a GPU, where a gather then runs beside
  // the compute of the unit before; 0 on CPU, which does both.
  std::optional<size_t> prefetch = {};
  BackwardOverlap backward_overlap = BackwardOverlap::full;
  Debug debug = Debug::none;
};

}  // namespace tessera
