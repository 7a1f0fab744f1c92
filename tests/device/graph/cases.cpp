#include "tests/device/graph/cases.h"

namespace tessera {
namespace {

std::vector<Case> with_gather_copies() {
  using train::ModelKernels;
  using train::RecomputePolicy;
  return {{.name = "a copy for gathers, clipped in the step",
           .bfloat16 = true,
           .prefetch = 1,
           .gather_copy = GatherCopy::kept,
           .clip_in_step = true},
          {.name = "a copy for gathers, steps in backward, fused kernels",
           .max_norm = 0,
           .recompute = RecomputePolicy::but_attention,
           .kernels = ModelKernels::fused,
           .bfloat16 = true,
           .gather_copy = GatherCopy::kept,
           .step_in_backward = true},
          {.name = "a copy for gathers, evaluation, a load between replays",
           .bfloat16 = true,
           .gather_copy = GatherCopy::kept,
           .evaluate_every = 2,
           .load_before = 5}};
}

std::vector<Case> with_norms_in_backward() {
  return {
      {.name = "norms in backward, bf16, clipped in the step",
       .bfloat16 = true,
       .prefetch = 1,
       .clip_in_step = true,
       .norm_in_backward = true},
      {.name = "norms in backward, accumulation of 3, a load between replays",
       .micro_batches = 3,
       .norm_in_backward = true,
       .load_before = 5}};
}

std::vector<Case> with_less_memory() {
  using train::ModelKernels;
  using train::RecomputePolicy;
  return {{.name = "activations on the host, fused kernels, bf16, prefetch 1",
           .recompute = RecomputePolicy::offload,
           .kernels = ModelKernels::fused,
           .bfloat16 = true,
           .prefetch = 1},
          {.name = "activations on the host, a load between replays",
           .recompute = RecomputePolicy::offload,
           .load_before = 5},
          {.name = "all but attention recomputed, backward overlaps tightly",
           .recompute = RecomputePolicy::but_attention,
           .kernels = ModelKernels::fused,
           .bfloat16 = true,
           .prefetch = 1,
           .backward_overlap = BackwardOverlap::tight},
          {.name = "activations on the host, dropout, accumulation of 3",
           .micro_batches = 3,
           .dropout = 0.2,
           .recompute = RecomputePolicy::offload,
           .evaluate_every = 2}};
}

}  // namespace

std::vector<Case> cases() {
  using train::ModelKernels;
  using train::RecomputePolicy;
  std::vector<Case> all = {
      {.name = "clipped, rates change"},
      {.name = "not clipped", .max_norm = 0},
      {.name = "accumulation of 3", .micro_batches = 3},
      {.name = "bf16, prefetch 1", .bfloat16 = true, .prefetch = 1},
      {.name = "bf16, kept after forward",
       .bfloat16 = true,
       .reshard = Reshard::never},
      {.name = "dropout", .dropout = 0.2},
      {.name = "dropout, accumulation of 3",
       .micro_batches = 3,
       .dropout = 0.2},
      {.name = "dropout, recompute of blocks",
       .dropout = 0.2,
       .recompute = RecomputePolicy::block},
      {.name = "selective recompute, fused kernels, bf16",
       .recompute = RecomputePolicy::selective,
       .kernels = ModelKernels::fused,
       .bfloat16 = true},
      {.name = "bf16, recompute of blocks, prefetch 2",
       .recompute = RecomputePolicy::block,
       .bfloat16 = true,
       .prefetch = 2},
      {.name = "steps in backward, accumulation of 3, prefetch 1",
       .micro_batches = 3,
       .max_norm = 0,
       .prefetch = 1,
       .step_in_backward = true},
      {.name = "steps in backward, bf16, fused kernels, recompute of blocks",
       .max_norm = 0,
       .recompute = RecomputePolicy::block,
       .kernels = ModelKernels::fused,
       .bfloat16 = true,
       .step_in_backward = true},
      {.name = "evaluation after every step", .evaluate_every = 1},
      {.name = "evaluation, prefetch 1", .prefetch = 1, .evaluate_every = 2},
      {.name = "a load between replays", .load_before = 5},
  };
  for (const auto& more :
       {with_gather_copies(), with_norms_in_backward(), with_less_memory()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace tessera
