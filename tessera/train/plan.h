// Memory and traffic of a training run, before it is run: what each rank holds,
// and what it sends. Pure arithmetic: no GPU, no ranks, no tensors.
//
//   Plan plan = plan_training({.model = model_preset("8b").model,
//                              .ranks = 16, .shard = {.replicas = 2}});
//   plan.memory.peak;      // bytes of one rank
//
// All layouts are those of shard/flat_layout, so bytes of shards and of
// gathered parameters are exact, padding included; what comes and goes in a
// step is counted by shard/resident_bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/peer_rounds.h"
#include "tessera/comm/transport.h"
#include "tessera/shard/resident_bytes.h"
#include "tessera/train/plan_model.h"
#include "tessera/train/shard_config.h"

namespace tessera::train {

struct PlanOptions {
  ModelConfig model = {};
  int64_t ranks = 1;          // of all replicas
  int64_t batch = 1;          // sequences of one forward of one rank
  int64_t seq = 0;            // tokens of each; 0: the model's longest
  int64_t micro_batches = 1;  // forwards and backwards of one step
  ShardConfig shard = {};
  Kernels kernels = Kernels::cuda;
  OptimizerStep optimizer_step = OptimizerStep::after_backward;
  Transport transport = Transport::nccl;
  int64_t window_mib = kPeerWindowMib;  // of copy_engines
};

/// `count` units alike. Numbers of elements, of one unit.
struct UnitPlan {
  std::string name;
  int64_t count = 1;
  int64_t numel = 0;        // of its parameters
  int64_t full_numel = 0;   // gathered, with padding
  int64_t shard_numel = 0;  // of one rank
};

/// Bytes of one rank. Of its device, unless the shards are offloaded from it.
struct MemoryPlan {
  int64_t parameters = 0;  // shards, fp32
  int64_t gradients = 0;   // of the shards, fp32, until the optimizer steps
  int64_t optimizer = 0;   // AdamW's two moments, fp32
  int64_t copies = 0;      // of the shards, for gathers (shard.gather_copy)
  int64_t windows = 0;     // for copies between GPUs (Transport::copy_engines)
  int64_t tables = 0;      // of the model, on every rank
  int64_t gathered = 0;    // full parameters at once, the prefetched ones too
  int64_t parts = 0;       // of full parameters, kept from forward to backward
  int64_t travelling = 0;  // the most that a gather in float8 takes beside them
  // The most that backward adds to shards, gradients and optimizer: gathered
  // parameters, whole gradients, and the buffers of their sums.
  int64_t reducing = 0;
  int64_t waiting = 0;  // whole gradients that wait for the last micro-batch
  int64_t activations = 0;
  int64_t logits = 0;
  // The most at once, as the step goes on: while activations are freed, buffers
  // of reductions come. What a backward operator needs for itself is left out.
  int64_t peak = 0;
  // Offloaded: parameters, gradients and optimizer, which are not in the peak.
  int64_t host = 0;
  // Activations between forward and backward, pinned for good. Of a CPU, whose
  // memory this is as well, in the peak.
  int64_t host_activations = 0;
  // On a GPU, outside of LibTorch's allocator and not in the peak: the CUDA
  // context and the buffers of NCCL. An estimate: docs/plan.md.
  int64_t outside = 0;
};

/// The NCCL communicators of one rank, each of two ranks or more.
struct CommunicatorPlan {
  int64_t of_tensors = 0;  // gather, reduce, ...
  int64_t of_numbers = 0;  // with one channel: they only sum some numbers
};

/// Of the `ranks` that take part in a call together.
struct CollectivePlan {
  std::string name;
  int64_t ranks = 1;
  int64_t calls = 0;       // of one step
  int64_t bytes = 0;       // of the whole buffers of all calls
  int64_t bytes_sent = 0;  // by one rank: (ranks - 1) / ranks of them, and for
                           // all-reduce twice that
};

struct Plan {
  int64_t num_parameters = 0;
  int64_t tokens_per_step = 0;  // over all ranks
  double flops_per_step = 0;    // of one rank
  std::vector<UnitPlan> units;
  MemoryPlan memory;
  std::vector<CollectivePlan> collectives;  // none for one rank
  CommunicatorPlan communicators;           // none for one rank, or on a CPU
};

/// Errors: InvalidArgument for a model that `validate` refuses, a number below
///         1, a sequence longer than the model's, strategy = "replicate", and
///         those of `shard_shape`.
[[nodiscard]] Plan plan_training(const PlanOptions& options);

/// For people, and for programs (JSON).
[[nodiscard]] std::string plan_text(const PlanOptions& options,
                                    const Plan& plan);
[[nodiscard]] std::string plan_json(const PlanOptions& options,
                                    const Plan& plan);

}  // namespace tessera::train
