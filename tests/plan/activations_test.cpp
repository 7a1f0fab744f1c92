// What the plan says of activations: what fused kernels, recompute and the host
// save.
#include <gtest/gtest.h>

#include <cstdint>

#include "tessera/train/plan.h"

namespace tessera::train {
namespace {

TEST(Plan, RecomputeAndFusedKernelsKeepLess) {
  ModelConfig model = model_preset("1b").model;
  const auto planned = [&](ModelKernels kernels, RecomputePolicy recompute) {
    model.kernels = kernels;
    model.recompute = recompute;
    return plan_training({.model = model,
                          .ranks = 8,
                          .shard = {.param_dtype = Precision::bfloat16}})
        .memory;
  };
  using enum RecomputePolicy;
  const MemoryPlan plain = planned(ModelKernels::plain, none);
  const MemoryPlan fused = planned(ModelKernels::fused, none);
  const MemoryPlan fused_selective = planned(ModelKernels::fused, selective);
  const MemoryPlan fused_block = planned(ModelKernels::fused, block);
  EXPECT_LT(fused.activations, plain.activations);
  EXPECT_LT(fused.logits, plain.logits);
  EXPECT_LT(fused_selective.activations, fused.activations);
  EXPECT_LT(fused_block.activations, fused_selective.activations / 4);
  EXPECT_LT(fused_block.peak, fused.peak);
  // One block is there whole while its backward runs.
  EXPECT_GT(fused_block.peak, fused.peak - fused.activations);
}

TEST(Plan, ActivationsOnTheHostLeaveTheDevice) {
  PlanOptions options{.model = model_preset("3b").model,
                      .ranks = 2,
                      .batch = 2,
                      .shard = {.param_dtype = Precision::bfloat16}};
  options.model.kernels = ModelKernels::fused;
  options.model.recompute = RecomputePolicy::selective;
  const MemoryPlan kept = plan_training(options).memory;
  EXPECT_EQ(kept.host_activations, 0);
  options.model.offload_blocks = 8;
  const MemoryPlan some = plan_training(options).memory;
  // q, the sum behind attention; k, v; gate, up.
  const int64_t block = 2 * 4096 * (2 * 3072 + 2 * 1024 + 2 * 8192) * 2;
  EXPECT_EQ(some.host_activations, 8 * block);
  EXPECT_EQ(kept.activations - some.activations, 8 * block);
  // The last block is one of them, so some are still under way before the loss.
  EXPECT_GE(kept.peak - some.peak, 5 * block);
  EXPECT_LE(kept.peak - some.peak, 8 * block);
  options.model.offload_blocks = 0;
  options.model.recompute = RecomputePolicy::offload;
  const MemoryPlan all = plan_training(options).memory;
  EXPECT_EQ(all.host_activations, 28 * block);
  options.kernels = Kernels::cpu;
  const MemoryPlan cpu = plan_training(options).memory;
  EXPECT_GT(cpu.peak, cpu.host_activations + cpu.activations)
      << "a CPU's host memory is its own";
}

TEST(Plan, DropoutKeepsAByteForEachElementOnAGpu) {
  ModelConfig model = model_preset("124m").model;
  const ForwardShape shape{.batch = 2, .seq = 512, .compute_bytes = 2};
  const int64_t without = activation_bytes(model, shape);
  model.dropout = 0.1;
  EXPECT_EQ(activation_bytes(model, shape) - without,
            2 * 512 * model.dim * (1 + 2 * model.layers));
}

}  // namespace
}  // namespace tessera::train
