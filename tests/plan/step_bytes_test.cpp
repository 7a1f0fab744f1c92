// The plan of a step against the bytes that a step of the trainer takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/train/plan.h"
#include "tests/plan/measured_step.h"

namespace tessera::train {
namespace {

using test::MeasuredSetup;
using test::MeasuredStep;

constexpr ModelConfig kLlama = {.architecture = Architecture::llama,
                                .vocab = 211,
                                .dim = 32,
                                .layers = 3,
                                .heads = 4,
                                .kv_heads = 2,
                                .ffn = 40,
                                .seq = 10};
constexpr ModelConfig kGpt2 = {.architecture = Architecture::gpt2,
                               .vocab = 211,
                               .dim = 32,
                               .layers = 3,
                               .heads = 4,
                               .kv_heads = 4,
                               .ffn = 72,
                               .seq = 10,
                               .tied = true};

int64_t bytes_of(Precision precision) {
  return precision == Precision::float32 ? 4 : 2;
}

PlanOptions options_of(const MeasuredSetup& setup) {
  return {.model = setup.model,
          .ranks = setup.ranks,
          .batch = setup.batch,
          .shard = setup.how,
          .kernels = Kernels::cpu};
}

std::string name_of(const MeasuredSetup& s) {
  return str(
      name_of(s.model.architecture), s.model.tied ? " tied" : "", ", ", s.ranks,
      " ranks, batch ", s.batch, ", reshard ", static_cast<int>(s.how.reshard),
      ", compute ", bytes_of(s.how.param_dtype), ", reduce ",
      bytes_of(s.how.reduce_dtype), ", over ", s.how.reshard_ranks,
      ", replicas ", s.how.replicas, ", gathers ",
      static_cast<int>(s.how.gather_dtype), ", copy ",
      static_cast<int>(s.how.gather_copy), ", prefetch ",
      s.how.prefetch.value_or(0), ", kernels ",
      static_cast<int>(s.model.kernels), ", recompute ",
      static_cast<int>(s.model.recompute), ", dropout ", s.model.dropout);
}

/// Beside what is planned there are numbers without a dim: losses, counts of
/// steps, and of each recomputed block a marker.
void expect_bytes(int64_t measured, int64_t planned, const char* what) {
  constexpr int64_t kScalars = 64;
  EXPECT_GE(measured, planned) << what;
  EXPECT_LE(measured, planned + kScalars) << what;
}

bool has_regions(const ModelConfig& model) {
  return model.recompute == RecomputePolicy::block ||
         model.recompute == RecomputePolicy::but_attention;
}

/// Measured from the embedding's backward on, which reads a gradient of its
/// output; and states of random numbers of recomputed blocks are there until
/// the graph goes. 1 %: the ranks' own small messages come and go.
void expect_reducing(const MeasuredSetup& setup, int64_t measured,
                     int64_t planned) {
  // More than two CPU ranks add bfloat16 up in float32: not planned.
  const ShardShape shape = shard_shape(setup.how, setup.ranks);
  const bool summed_apart = std::max(shape.ranks, shape.replicas) > 2 &&
                            bytes_of(setup.how.reduce_dtype) == 2;
  if (setup.batch > 3 || summed_apart) return;
  const auto& model = setup.model;
  const int64_t output =
      setup.batch * model.seq * model.dim * bytes_of(setup.how.param_dtype);
  const bool draws = has_regions(model) && model.dropout > 0;
  const int64_t states = draws ? model.layers * 5056 : 0;
  EXPECT_GE(measured, planned - planned / 100) << "reducing";
  EXPECT_LE(measured, planned + planned / 100 + output + states) << "reducing";
}

int64_t calls_of(const Plan& plan, const std::string& name) {
  int64_t calls = 0;
  for (const CollectivePlan& each : plan.collectives) {
    if (each.name == name) calls += each.calls;
  }
  return calls;
}

/// Along an axis of one rank there are none.
void expect_calls(const MeasuredSetup& setup, const MeasuredStep& measured,
                  const Plan& plan) {
  const ShardShape shape = shard_shape(setup.how, setup.ranks);
  const auto along = [](int64_t ranks, int64_t calls) {
    return ranks > 1 ? calls : 0;
  };
  EXPECT_EQ(
      calls_of(plan, "all-gather") + calls_of(plan, "all-gather of parts"),
      along(shape.ranks, measured.num_gathers));
  EXPECT_EQ(calls_of(plan, "reduce-scatter"),
            along(shape.ranks, measured.num_reduces));
  EXPECT_EQ(calls_of(plan, "all-reduce"),
            along(shape.replicas, measured.num_reduces));
}

void expect_planned(const MeasuredSetup& setup) {
  SCOPED_TRACE(name_of(setup));
  PlanOptions options = options_of(setup);
  const Plan plan = plan_training(options);
  const MemoryPlan& planned = plan.memory;
  const MeasuredStep measured = test::measure_step(setup);
  const LogitsBytes logits = logits_bytes(
      setup.model, {.batch = setup.batch,
                    .seq = setup.model.seq,
                    .compute_bytes = bytes_of(setup.how.param_dtype),
                    .kernels = Kernels::cpu});
  EXPECT_EQ(measured.model, planned.parameters + planned.tables);
  // The first gather makes the copies, the first forward what the host keeps.
  expect_bytes(measured.optimizer,
               planned.optimizer + planned.copies + planned.host_activations,
               "optimizer and copies");
  expect_bytes(measured.gradients, planned.gradients, "gradients");
  EXPECT_EQ(measured.gathered, planned.gathered);
  expect_bytes(measured.activations,
               planned.activations + logits.kept + planned.parts,
               "activations");
  // A recomputed block has its first product before the loss is through.
  if (!has_regions(setup.model)) {
    expect_bytes(measured.loss_peak,
                 planned.activations + planned.logits + planned.parts,
                 "logits");
  }
  expect_reducing(setup, measured.reducing,
                  planned.gradients + planned.reducing);
  expect_calls(setup, measured, plan);
  if (setup.ranks > 1) {
    expect_bytes(measured.travelling, planned.travelling, "travelling");
  }
  // In models this small, what operators need for themselves is much.
  EXPECT_NEAR(
      static_cast<double>(measured.peak) / static_cast<double>(planned.peak), 1,
      0.15)
      << measured.peak << " " << planned.peak;
  options.micro_batches = 2;
  expect_bytes(measured.waiting, plan_training(options).memory.waiting,
               "waiting");
}

std::vector<ShardConfig> dtypes_of(ReshardPolicy reshard) {
  using enum Precision;
  return {
      {.reshard = reshard},
      {.param_dtype = bfloat16, .reshard = reshard},
      {.param_dtype = bfloat16, .reduce_dtype = bfloat16, .reshard = reshard}};
}

void expect_planned_at_all_ranks(ModelConfig model) {
  for (const bool tied : {false, true}) {
    model.tied = tied;
    for (const int ranks : {1, 2, 3}) {
      for (const auto reshard : {ReshardPolicy::automatic,
                                 ReshardPolicy::always, ReshardPolicy::never}) {
        for (const ShardConfig& how : dtypes_of(reshard)) {
          expect_planned(
              {.model = model, .ranks = ranks, .batch = 3, .how = how});
        }
      }
    }
  }
}

TEST(StepBytes, OfLlamaAreThoseOfThePlan) {
  expect_planned_at_all_ranks(kLlama);
}

TEST(StepBytes, OfGpt2AreThoseOfThePlan) { expect_planned_at_all_ranks(kGpt2); }

TEST(StepBytes, OfKernelsRecomputeAndDropoutAreThoseOfThePlan) {
  ModelConfig model = kLlama;
  for (const auto kernels : {ModelKernels::plain, ModelKernels::fused}) {
    for (const auto recompute :
         {RecomputePolicy::none, RecomputePolicy::selective,
          RecomputePolicy::offload, RecomputePolicy::but_attention,
          RecomputePolicy::block}) {
      for (const double dropout : {0.0, 0.2}) {
        model.kernels = kernels;
        model.recompute = recompute;
        model.dropout = dropout;
        for (const ShardConfig& how : dtypes_of(ReshardPolicy::automatic)) {
          expect_planned({.model = model, .batch = 3, .how = how});
        }
      }
    }
  }
  model.dropout = 0;
  model.selective_last = 1;
  for (const ShardConfig& how : dtypes_of(ReshardPolicy::automatic)) {
    expect_planned({.model = model, .batch = 3, .how = how});
  }
  model = kGpt2;
  model.dropout = 0.2;
  for (const ShardConfig& how : dtypes_of(ReshardPolicy::automatic)) {
    expect_planned({.model = model, .batch = 3, .how = how});
  }
}

// More tokens than the fused loss takes at once.
TEST(StepBytes, OfALossInPartsAreThoseOfThePlan) {
  ModelConfig model = kLlama;
  model.kernels = ModelKernels::fused;
  for (const ShardConfig& how : dtypes_of(ReshardPolicy::automatic)) {
    expect_planned({.model = model, .batch = 110, .how = how});
  }
}

TEST(StepBytes, OfPrefetchAreThoseOfThePlan) {
  for (const ModelConfig& model : {kLlama, kGpt2}) {
    for (const int64_t prefetch : {1, 2}) {
      for (const int ranks : {1, 2}) {
        for (const auto overlap :
             {BackwardOverlap::full, BackwardOverlap::tight}) {
          expect_planned(
              {.model = model,
               .ranks = ranks,
               .batch = 3,
               .how = {.prefetch = prefetch, .backward_overlap = overlap}});
        }
      }
    }
  }
}

TEST(StepBytes, OfReplicasAreThoseOfThePlan) {
  for (const ModelConfig& model : {kLlama, kGpt2}) {
    for (const int ranks : {2, 4}) {
      for (ShardConfig how : dtypes_of(ReshardPolicy::automatic)) {
        how.replicas = 2;
        expect_planned(
            {.model = model, .ranks = ranks, .batch = 3, .how = how});
      }
    }
  }
}

TEST(StepBytes, OfPartsThatSomeRanksKeepAreThoseOfThePlan) {
  for (const int64_t prefetch : {0, 1}) {
    for (ShardConfig how : dtypes_of(ReshardPolicy::automatic)) {
      how.reshard_ranks = 2;
      how.prefetch = prefetch;
      expect_planned({.model = kLlama, .ranks = 4, .batch = 3, .how = how});
    }
  }
}

TEST(StepBytes, OfFloat8GathersAreThoseOfThePlan) {
  for (const ModelConfig& model : {kLlama, kGpt2}) {
    for (const int ranks : {1, 2, 3}) {
      for (ShardConfig how : dtypes_of(ReshardPolicy::automatic)) {
        how.gather_dtype = GatherDtype::float8;
        expect_planned(
            {.model = model, .ranks = ranks, .batch = 3, .how = how});
      }
    }
  }
}

TEST(StepBytes, OfACopyForGathersAreThoseOfThePlan) {
  for (const ModelConfig& model : {kLlama, kGpt2}) {
    for (const int ranks : {1, 2, 3}) {
      for (ShardConfig how : dtypes_of(ReshardPolicy::automatic)) {
        if (how.param_dtype == Precision::float32) continue;
        how.gather_copy = CopyForGathers::kept;
        expect_planned(
            {.model = model, .ranks = ranks, .batch = 3, .how = how});
      }
    }
  }
}

TEST(StepBytes, OfOffloadOnACpuAreThoseOfThePlan) {
  expect_planned(
      {.model = kLlama, .batch = 3, .how = {.offload = Offload::pinned}});
}

}  // namespace
}  // namespace tessera::train
