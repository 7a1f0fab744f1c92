#include "tessera/train/plan.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/peer_rounds.h"
#include "tessera/train/plan_step.h"

namespace tessera::train {
namespace {

constexpr int64_t kMasterBytes = 4;

// Measured with LibTorch 2.11 and NCCL 2.28 on 2 H200 (docs/plan.md), but the
// third, which is reckoned: one channel of some thirty.
constexpr int64_t kContextBytes = int64_t{512} << 20;
constexpr int64_t kTensorCommunicatorBytes = int64_t{600} << 20;
constexpr int64_t kNumberCommunicatorBytes = int64_t{32} << 20;

PlanOptions checked(PlanOptions o) {
  validate(o.model);
  if (o.seq == 0) o.seq = o.model.seq;
  const auto at_least_one = [](const char* name, int64_t value) {
    require<InvalidArgument>(value >= 1, [&] {
      return str("plan: ", name, " is ", value, "; give 1 or more.");
    });
  };
  at_least_one("ranks", o.ranks);
  at_least_one("batch", o.batch);
  at_least_one("seq", o.seq);
  at_least_one("micro-batches", o.micro_batches);
  require<InvalidArgument>(o.shard.prefetch.value_or(0) >= 0, [&] {
    return str("plan: prefetch is ", *o.shard.prefetch, "; give 0 or more.");
  });
  require<InvalidArgument>(o.shard.strategy == Strategy::fully_shard, [] {
    return str("plan: the strategy is replicate; give fully_shard.");
  });
  require<InvalidArgument>(o.seq <= o.model.seq, [&] {
    return str("plan: seq is ", o.seq, ", longer than model.seq, ", o.model.seq,
               ".");
  });
  return o;
}

UnitPlan plan_unit(const UnitShapes& unit,
                   const std::vector<GroupMemory>& groups) {
  UnitPlan plan{.name = unit.name, .count = unit.count};
  for (const GroupMemory& group : groups) {
    plan.full_numel += group.layout.full_numel();
    plan.shard_numel += group.layout.shard_numel();
    for (const FlatParameter& each : group.layout.parameters()) {
      plan.numel += each.numel;
    }
  }
  return plan;
}

int64_t sum_of(const std::vector<UnitPlan>& units,
               int64_t UnitPlan::*elements) {
  int64_t sum = 0;
  for (const UnitPlan& unit : units) sum += unit.count * unit.*elements;
  return sum;
}

/// Of all shards no gradients are there at once: what is, backward adds.
bool steps_early(const PlanOptions& o) {
  return o.optimizer_step == OptimizerStep::in_backward &&
         shard_shape(o.shard, o.ranks).ranks > 1 && o.shard.replicas == 1;
}

ForwardShape forward_shape(const PlanOptions& o) {
  return {.batch = o.batch,
          .seq = o.seq,
          .compute_bytes = compute_bytes(o),
          .kernels = o.kernels};
}

/// The step with what autograd keeps, and with gradients that wait.
StepMemory with_activations(StepMemory step, const std::vector<UnitPlan>& units,
                            const std::vector<size_t>& plan_index,
                            const PlanOptions& o) {
  const ActivationBytes bytes = activations_of(o.model, forward_shape(o));
  const LogitsBytes logits = logits_bytes(o.model, forward_shape(o));
  int64_t block = 0;  // visited in the order of the forward
  for (UnitVisit& visit : step.visits) {
    if (is_block(units[plan_index[visit.unit]].name)) {
      const BlockBytes own = block_bytes(o.model, forward_shape(o), block++);
      visit.kept_bytes = own.kept;
      visit.again_bytes = own.again;
      visit.offloaded_bytes = own.offloaded;
    } else if (visit.unit == 0) {
      visit.kept_bytes = bytes.norm;
    }
    if (o.micro_batches > 1) {
      visit.waiting_bytes =
          visit.gradient_bytes / compute_bytes(o) * reduce_bytes(o);
    }
  }
  step.visits.front().kept_bytes = bytes.embedding;
  step.visits.back().kept_bytes += bytes.head;
  step.loss = {.kept_bytes = logits.kept,
               .peak_bytes = logits.peak,
               .left_bytes = logits.left};
  return step;
}

/// Those of shard/lanes.h, and one for parts that some ranks keep.
CommunicatorPlan plan_communicators(const PlanOptions& o) {
  CommunicatorPlan plan;
  if (o.kernels != Kernels::cuda || o.ranks == 1) return plan;
  const ShardShape shape = shard_shape(o.shard, o.ranks);
  const int64_t keepers = o.shard.reshard_ranks;
  plan.of_numbers = 1;                        // control
  if (shape.ranks > 1) plan.of_tensors += 2;  // gather, reduce
  if (keepers > 1 && keepers < shape.ranks) ++plan.of_tensors;
  if (shape.replicas > 1) {
    ++plan.of_tensors;                       // all-reduce
    if (shape.ranks > 1) ++plan.of_numbers;  // norm
  }
  return plan;
}

/// Communicators whose GPUs copy from each other: of gathers and
/// reduce-scatters.
int64_t num_links(const PlanOptions& o) {
  if (!goes_by_copy_engines(o)) return 0;
  const int64_t ranks = shard_shape(o.shard, o.ranks).ranks;
  const int64_t keepers = o.shard.reshard_ranks;
  const bool among_keepers = keepers > 1 && keepers < ranks;
  return among_keepers ? 3 : 2;
}

MemoryPlan plan_memory(const std::vector<UnitPlan>& units, const StepPlan& plan,
                       const ResidentBytes& resident, const PlanOptions& o) {
  const int64_t shards = sum_of(units, &UnitPlan::shard_numel) * kMasterBytes;
  MemoryPlan m{.parameters = shards,
               .gradients = steps_early(o) ? 0 : shards,
               .optimizer = plan.step.optimizer_bytes,
               .tables = table_bytes(o.model),
               .gathered = resident.gathered_peak,
               .parts = resident.parts_peak};
  for (const UnitMemory& unit : plan.step.units) {
    m.travelling = std::max(m.travelling, travel_bytes(unit));
  }
  const int64_t always = m.parameters + m.gradients + m.optimizer;
  const bool on_host = masters_of(o) == Masters::on_host;
  m.host = on_host ? always : 0;
  if (o.kernels == Kernels::cuda) {
    const CommunicatorPlan all = plan_communicators(o);
    m.outside = kContextBytes + all.of_tensors * kTensorCommunicatorBytes +
                all.of_numbers * kNumberCommunicatorBytes;
  }
  m.reducing =
      std::max<int64_t>(0, resident.backward_peak - (on_host ? 0 : always));
  if (o.micro_batches > 1) {
    m.waiting = sum_of(units, &UnitPlan::numel) * reduce_bytes(o);
  }
  m.activations = activation_bytes(o.model, forward_shape(o));
  m.logits = logits_bytes(o.model, forward_shape(o)).peak;
  const ResidentBytes whole =
      resident_bytes(with_activations(plan.step, units, plan.plan_index, o));
  if (o.shard.gather_copy == CopyForGathers::kept) {
    m.copies = sum_of(units, &UnitPlan::shard_numel) * compute_bytes(o);
  }
  m.windows = num_links(o) * (o.window_mib << 20);
  m.peak = whole.peak() + m.tables + m.copies + m.windows;
  m.host_activations = host_bytes(o.model, forward_shape(o));
  if (o.kernels == Kernels::cpu) m.peak += m.host_activations;
  return m;
}

/// The bytes of a gather of this group.
int64_t gather_bytes(const GroupMemory& group) {
  return group.form == GatherForm::float8
             ? wire_bytes(group)
             : group.layout.full_numel() * group.compute_bytes;
}

void add_call(CollectivePlan& collective, int64_t calls, int64_t bytes) {
  collective.calls += calls;
  collective.bytes += calls * bytes;
}

/// Those that more than one rank takes part in, and that are called.
std::vector<CollectivePlan> with_bytes_sent(
    std::vector<CollectivePlan> collectives) {
  std::erase_if(collectives, [](const CollectivePlan& each) {
    return each.ranks == 1 || each.calls == 0;
  });
  for (CollectivePlan& each : collectives) {
    each.bytes_sent = each.bytes / each.ranks * (each.ranks - 1);
    if (each.name == "all-reduce") each.bytes_sent *= 2;
  }
  return collectives;
}

std::vector<CollectivePlan> plan_collectives(const StepPlan& plan,
                                             const ResidentBytes& resident,
                                             const PlanOptions& o) {
  const ShardShape shape = shard_shape(o.shard, o.ranks);
  CollectivePlan gather{.name = "all-gather", .ranks = shape.ranks};
  CollectivePlan of_parts{.name = "all-gather of parts",
                          .ranks = std::max<int64_t>(1, o.shard.reshard_ranks)};
  CollectivePlan reduce{.name = "reduce-scatter", .ranks = shape.ranks};
  CollectivePlan all_reduce{.name = "all-reduce", .ranks = shape.replicas};
  for (size_t i = 0; i < plan.step.units.size(); ++i) {
    const int64_t parts = resident.num_gathers_of_parts[i];
    for (const GroupMemory& group : plan.step.units[i].groups) {
      const FlatLayout& layout = group.layout;
      add_call(gather, (resident.num_gathers[i] - parts) * o.micro_batches,
               gather_bytes(group));
      add_call(of_parts, parts * o.micro_batches,
               layout.full_numel() * group.compute_bytes);
      add_call(reduce, 1, layout.full_numel() * sent_bytes(o));
      add_call(all_reduce, 1, layout.shard_numel() * group.reduce_bytes);
    }
  }
  return with_bytes_sent({gather, of_parts, reduce, all_reduce});
}

}  // namespace

Plan plan_training(const PlanOptions& options) {
  const PlanOptions o = checked(options);
  Plan plan;
  plan.num_parameters = num_parameters(o.model);
  for (const UnitShapes& unit : unit_shapes(o.model)) {
    plan.units.push_back(plan_unit(unit, groups_of(unit, o)));
  }
  const StepPlan step = plan_step(plan.units, o);
  const ResidentBytes resident = resident_bytes(step.step);
  plan.memory = plan_memory(plan.units, step, resident, o);
  plan.collectives = plan_collectives(step, resident, o);
  plan.communicators = plan_communicators(o);
  const int64_t tokens = o.batch * o.seq * o.micro_batches;
  plan.tokens_per_step = tokens * o.ranks;
  ModelConfig as_run = o.model;
  as_run.seq = o.seq;
  // Positions are looked up, so a shorter table changes nothing else.
  plan.flops_per_step = flops_per_token(as_run) * static_cast<double>(tokens);
  return plan;
}

}  // namespace tessera::train
