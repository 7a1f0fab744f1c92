// What may be changed between steps: FSDP2's methods of a sharded module, as
// functions of the module. Every rank makes the same calls. All raise
// InvalidArgument for a module that is not sharded, or is a part of a unit.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/device/stream.h"
#include "tessera/shard/backward_step.h"
#include "tessera/shard/custom_collectives.h"
#include "tessera/shard/options.h"

namespace tessera {

enum class Sync { on, off };
enum class AllReduce { on, off };
enum class NormInBackward { on, off };
enum class Recurse { yes, no };

/// With Sync::off backward keeps whole gradients, without communication; the
/// next backward with Sync::on reduces their sum. For gradient accumulation.
/// The gradients kept are hidden: `.grad` stays undefined and `zero_grad` does
/// not clear them.
void set_requires_gradient_sync(torch::nn::Module& module, Sync sync,
                                Recurse recurse = Recurse::yes);

/// HSDP: with AllReduce::off backward sums gradients along the shard axis only
/// and keeps the sums; the next backward with AllReduce::on adds them to its
/// own and sums over the replicas. `.grad` stays as it is until then. Nothing
/// without replicas.
void set_requires_all_reduce(torch::nn::Module& module, AllReduce all_reduce,
                             Recurse recurse = Recurse::yes);

/// Replaces the option of fully_shard, from the next forward on.
void set_reshard_after_forward(torch::nn::Module& module, Reshard reshard,
                               Recurse recurse = Recurse::yes);

/// With Reshard::never full parameters stay after backward: accumulating
/// gradients, the next forward need not gather them. They are gathered again
/// once their shards were written. Reshard::automatic is Reshard::always. A
/// unit of which some rank owns nothing is always resharded: that rank would
/// not notice an optimizer's step.
void set_reshard_after_backward(torch::nn::Module& module, Reshard reshard,
                                Recurse recurse = Recurse::yes);

/// When `module` is gathered in forward (backward), the gathers of `modules`
/// are started too, in this order, in place of those that a learned order would
/// start. Wrong lists cost time, never numbers; modules of another tree are
/// passed over. An empty list gives the choice back.
/// Errors: InvalidArgument for a module that was not given to fully_shard.
void set_modules_to_forward_prefetch(
    torch::nn::Module& module, const std::vector<torch::nn::Module*>& modules);
void set_modules_to_backward_prefetch(
    torch::nn::Module& module, const std::vector<torch::nn::Module*>& modules);

/// Gradients of this module's own unit are divided by `factor` instead of by
/// the number of ranks; `{}` gives that back. Not recursive, as in FSDP2.
/// Errors: InvalidArgument for a factor that is not above 0 and finite.
void set_gradient_divide_factor(torch::nn::Module& module,
                                std::optional<double> factor);

/// `hook` sees the flat gradient of each group of this module's own unit, in
/// the reduce dtype, after all sums over ranks and before the division; it
/// changes it in place. It runs at the end of backward, units in one order on
/// all ranks, so that it may communicate. Null removes it.
using AllReduceHook = std::function<void(const at::Tensor& flat_gradient)>;
void set_all_reduce_hook(torch::nn::Module& module, AllReduceHook hook);

/// Steps the optimizer inside of backward, so that it runs while gradients of
/// earlier layers are computed, and no more than the gradients of some units
/// are there at once. `step` is called with the shards of one unit, whose
/// gradients are reduced and are dropped when it returns; each rank calls it
/// for its own units, on the stream of the reductions. Null gives that up.
///
///   tessera::step_in_backward(*model, [&](const auto& shards) {
///     optimizer.step_only(shards);
///   });
///
/// Every backward that reduces gradients is then a step: accumulate with
/// Sync::off. What needs all gradients before the first step cannot be had:
/// `clip_grad_norm_` and `GradScaler` refuse these parameters. A backward pass
/// that fails leaves some units stepped.
void step_in_backward(torch::nn::Module& module, ShardStep step);

/// With NormInBackward::on each backward that reduces gradients takes the
/// 2-norms of this rank's parts, too: on CUDA of each unit behind its sum,
/// beside the rest of backward, on CPU while the sums of later units are on
/// their way. `get_total_norm` and `clip_grad_norm_` then use those, and give
/// the very numbers that they give without: what operators have changed since
/// is looked at anew. Off unless asked for, since writes that no version
/// counter and no gate sees stay unseen: those through raw pointers, and of
/// operators that leave the version of `local(grad)` as it is. With several
/// backward passes to a step it pays with Sync::off for all but the last.
/// Nothing for units that step in backward.
void set_norm_in_backward(torch::nn::Module& module, NormInBackward norm,
                          Recurse recurse = Recurse::yes);

/// Several sharded trees that run in turn (chunks of a pipeline, say) use one
/// set of streams, the first one's: their gathers and reductions then queue up
/// instead of sharing the wires.
/// Errors: InvalidArgument for a module that was not given to fully_shard, or
///         whose mesh is another.
void share_comm_ctx(const std::vector<torch::nn::Module*>& modules);

/// For an optimizer that steps on a stream of its own: the gathers of
/// `module`'s units that come next wait for `event`, which the step recorded
/// behind its last write, and so does what comes next on the current stream: to
/// that the memory of the gradients goes back when they are dropped, so no work
/// may be asked of it between the two. FSDP2's; there gathers then do not wait
/// for the current stream, here they do. Nothing on CPU.
/// Errors: InvalidArgument for a module without units.
void set_post_optim_event(torch::nn::Module& module, StreamEvent& event);

/// How this module's own unit is gathered and reduced, also among the ranks
/// that keep it until backward (reshard_after_forward = n); null is the
/// built-in way. Errors: InvalidArgument for what `replicate` took, which
/// neither is done to.
void set_custom_all_gather(torch::nn::Module& module,
                           std::shared_ptr<AllGather> all_gather);
void set_custom_reduce_scatter(torch::nn::Module& module,
                               std::shared_ptr<ReduceScatter> reduce_scatter);

}  // namespace tessera
