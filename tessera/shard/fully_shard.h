// fully_shard: any LibTorch module, its parameters spread over the ranks of a
// mesh, gathered on first use.
//
//   for (auto& block : *model->layers) fully_shard(*block, {.mesh = mesh});
//   fully_shard(*model, {.mesh = mesh});   // bottom-up, then the root
//   torch::optim::AdamW optimizer(model->parameters(), 3e-4);  // after
//   sharding
//
// Afterwards `model->parameters()` returns shards, always; typed members
// (`block->linear->weight`) are the full parameters, whose data is there while
// an operator reads them. Names and meanings are those of PyTorch's FSDP2; what
// differs is in docs/differences_from_fsdp2.md.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "tessera/shard/options.h"
#include "tessera/shard/unit_settings.h"  // what may be changed later

namespace tessera {

/// Shards all parameters below `module` that no earlier call has taken. In
/// place; the module's type, names and order of parameters stay.
///
/// Collective: every rank of the mesh makes the same calls in the same order.
/// Meta parameters stay without data until `materialize`. Parameters on another
/// device than the mesh's are moved, and so are buffers.
/// Errors: InvalidArgument for a mesh of three axes, a 0-dim or integer
///         parameter, a ParameterList or ParameterDict, a policy of other than
///         16, 32 or 64-bit floating dtypes; InvalidState for a
///         second call on the same module, an optimizer or other handle made
///         before, or ranks that start from different values; Unsupported for
///         non-contiguous parameters and Embedding with max_norm. Nothing is
///         changed by a call that fails.
void fully_shard(torch::nn::Module& module, const FullyShardOptions& options);

/// One unit out of several modules, gathered and reduced together.
void fully_shard(const std::vector<torch::nn::Module*>& modules,
                 const FullyShardOptions& options);

/// For models that fit: every rank keeps all parameters, gradients are averaged
/// over the ranks. Same engine, same rules; one unit for each child of `model`
/// (each element of a list) and one for the rest.
void replicate(torch::nn::Module& model, const FullyShardOptions& options);

enum class Wait { yes, no };

/// A gather under way. One that is dropped without `wait` goes on; the first
/// use of the parameters waits for it then.
class UnshardHandle {
 public:
  explicit UnshardHandle(std::vector<std::shared_ptr<class Unit>> units)
      : units_(std::move(units)) {}
  /// Returns when the full parameters may be read. A second call does nothing.
  void wait();

 private:
  std::vector<std::shared_ptr<class Unit>> units_;
};

/// Gathers the units of this module itself (not those below it), until they
/// are used and resharded, or `reshard`. With Wait::no it returns at once, and
/// what comes before `wait` or the first use runs beside the gather.
/// Nothing for a module whose parameters all are in units below it. Collective.
/// Errors: InvalidArgument for a part of a unit.
UnshardHandle unshard(torch::nn::Module& module, Wait wait = Wait::yes);

/// Frees the full parameters of the units of this module itself. Errors: as of
/// `unshard`.
void reshard(torch::nn::Module& module);

/// The full parameter behind `parameter` (a member, or a view of one) as a
/// plain tensor for a kernel of one's own: gathered now, and good until an
/// operator touches another unit. Collective. Has no autograd history.
[[nodiscard]] at::Tensor gathered(const at::Tensor& parameter);

/// Says that shards of this module or below were written through raw pointers,
/// which nothing else can notice: gathered copies of them are stale.
void mark_changed(torch::nn::Module& module);

/// Whether `module` was given to fully_shard or replicate.
[[nodiscard]] bool is_fully_sharded(torch::nn::Module& module);

}  // namespace tessera
