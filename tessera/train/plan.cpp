#include "tessera/train/plan.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/shard/flat_layout.h"
#include "tessera/shard/resident_bytes.h"

namespace tessera::train {
namespace {

constexpr int64_t kMasterBytes = 4;
constexpr int64_t kMoments = 2;  // of AdamW

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
  require<InvalidArgument>(o.seq <= o.model.seq, [&] {
    return str("plan: seq is ", o.seq, ", longer than model.seq, ", o.model.seq,
               ".");
  });
  for (const int64_t bytes : {o.compute_bytes, o.reduce_bytes}) {
    require<InvalidArgument>(bytes == 2 || bytes == 4, [&] {
      return str("plan: elements of ", bytes, " bytes; give 2 or 4.");
    });
  }
  return o;
}

FlatLayout layout_of(const UnitShapes& unit, const PlanOptions& o) {
  return plan_flat_layout(unit.shapes, {.world_size = o.ranks,
                                        .compute_bytes = o.compute_bytes,
                                        .reduce_bytes = o.reduce_bytes});
}

UnitPlan plan_unit(const UnitShapes& unit, const FlatLayout& layout) {
  UnitPlan plan{.name = unit.name,
                .count = unit.count,
                .full_numel = layout.full_numel(),
                .shard_numel = layout.shard_numel()};
  for (const FlatParameter& each : layout.parameters()) {
    plan.numel += each.numel;
  }
  return plan;
}

/// Full parameters lie in the shards' own memory: one rank, no cast.
bool needs_no_gather(const PlanOptions& o) {
  return o.ranks == 1 && o.compute_bytes == kMasterBytes;
}

int64_t sum_of(const std::vector<UnitPlan>& units,
               int64_t UnitPlan::*elements) {
  int64_t sum = 0;
  for (const UnitPlan& unit : units) sum += unit.count * unit.*elements;
  return sum;
}

/// Elements of full parameters that are there at once: the root's, which stay,
/// and of two units that follow each other, one in use and one on its way.
int64_t gathered_at_once(const std::vector<UnitPlan>& units,
                         const PlanOptions& o) {
  if (o.reshard == PlanReshard::never) {
    return sum_of(units, &UnitPlan::full_numel);
  }
  std::vector<int64_t> order;  // of the forward, the root left out
  for (size_t i = 0; i + 1 < units.size(); ++i) {
    const auto repeats =
        static_cast<size_t>(std::min<int64_t>(units[i].count, 2));
    order.insert(order.end(), repeats, units[i].full_numel);
  }
  if (o.model.tied) order.push_back(units.front().full_numel);  // the head
  int64_t most = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t next = i + 1 < order.size() ? order[i + 1] : 0;
    // The head and the embedding of a tied model are one unit.
    most = std::max(most, order[i] + next);
  }
  return most + units.back().full_numel;
}

ForwardShape forward_shape(const PlanOptions& o) {
  return {.batch = o.batch,
          .seq = o.seq,
          .compute_bytes = o.compute_bytes,
          .kernels = o.kernels};
}

UnitMemory unit_memory(const FlatLayout& layout, const PlanOptions& o) {
  const bool kept = o.reshard == PlanReshard::never;
  return {.groups = {{.layout = layout,
                      .compute_bytes = o.compute_bytes,
                      .reduce_bytes = o.reduce_bytes}},
          .after_forward = kept ? AfterForward::kept : AfterForward::freed};
}

/// Unit 0 is the root; the others are visited one after the other, and the
/// root, which has the last norm, before the head.
StepMemory step_memory(const std::vector<UnitPlan>& units,
                       const PlanOptions& o) {
  const auto shapes = unit_shapes(o.model);
  StepMemory step{.reduce_buffers = o.kernels == Kernels::cuda
                                        ? ReduceBuffers::until_next
                                        : ReduceBuffers::until_end};
  step.units.push_back(unit_memory(layout_of(shapes.back(), o), o));
  if (o.reshard == PlanReshard::automatic) {
    step.units[0].after_forward = AfterForward::kept;
  }
  const UnitVisit root{0, units.back().numel * o.compute_bytes};
  for (size_t i = 0; i + 1 < shapes.size(); ++i) {
    if (shapes[i].name == "lm_head") step.visits.push_back(root);
    const UnitMemory memory = unit_memory(layout_of(shapes[i], o), o);
    for (int64_t n = 0; n < shapes[i].count; ++n) {
      step.visits.push_back(
          {step.units.size(), units[i].numel * o.compute_bytes});
      step.units.push_back(memory);
      step.units.back().parent = 0;
    }
  }
  if (o.model.tied) {
    step.visits.push_back(root);
    step.visits.push_back({1, 0});  // the embedding, as the head
  }
  step.optimizer_bytes =
      kMoments * sum_of(units, &UnitPlan::shard_numel) * kMasterBytes;
  return step;
}

MemoryPlan plan_memory(const std::vector<UnitPlan>& units,
                       const PlanOptions& o) {
  const ForwardShape shape = forward_shape(o);
  const StepMemory step = step_memory(units, o);
  const ResidentBytes resident = resident_bytes(step);
  const int64_t shards = sum_of(units, &UnitPlan::shard_numel) * kMasterBytes;
  MemoryPlan m{.parameters = shards,
               .gradients = shards,
               .optimizer = step.optimizer_bytes};
  if (!needs_no_gather(o)) {
    m.gathered = gathered_at_once(units, o) * o.compute_bytes;
  }
  m.reducing = std::max<int64_t>(
      0, resident.backward_peak - m.parameters - m.gradients - m.optimizer);
  if (o.micro_batches > 1) {
    m.waiting = sum_of(units, &UnitPlan::numel) * o.reduce_bytes;
  }
  m.activations = activation_bytes(o.model, shape);
  m.logits = logits_bytes(o.model, shape);
  const int64_t begin =
      resident.between_steps + m.gathered + m.activations + m.logits;
  const int64_t end =
      resident.backward_peak + block_activation_bytes(o.model, shape);
  m.peak = m.waiting + std::max(begin, end);
  return m;
}

/// Gathers of one unit in one micro-batch. The blocks were resharded when the
/// head, which stays until backward, was touched; an embedding's backward does
/// not read its weight.
int64_t gathers_of(size_t index, const std::vector<UnitPlan>& units,
                   const PlanOptions& o) {
  const bool is_root = index + 1 == units.size();
  const bool is_block =
      units[index].name == "layers" || units[index].name == "h";
  if (o.reshard == PlanReshard::never) return 1;
  if (is_root) return o.reshard == PlanReshard::always ? 2 : 1;
  const bool is_tied_head = index == 0 && o.model.tied;
  return is_block || is_tied_head ? 2 : 1;
}

std::vector<CollectivePlan> plan_collectives(const std::vector<UnitPlan>& units,
                                             const PlanOptions& o) {
  if (o.ranks == 1) return {};
  CollectivePlan gather{.name = "all-gather"};
  CollectivePlan reduce{.name = "reduce-scatter"};
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t gathers =
        gathers_of(i, units, o) * o.micro_batches * units[i].count;
    gather.calls += gathers;
    gather.bytes += gathers * units[i].full_numel * o.compute_bytes;
    reduce.calls += units[i].count;
    reduce.bytes += units[i].count * units[i].full_numel * o.reduce_bytes;
  }
  for (CollectivePlan* each : {&gather, &reduce}) {
    each->bytes_sent = each->bytes / o.ranks * (o.ranks - 1);
  }
  return {gather, reduce};
}

}  // namespace

Plan plan_training(const PlanOptions& options) {
  const PlanOptions o = checked(options);
  Plan plan;
  plan.num_parameters = num_parameters(o.model);
  for (const UnitShapes& unit : unit_shapes(o.model)) {
    plan.units.push_back(plan_unit(unit, layout_of(unit, o)));
  }
  plan.memory = plan_memory(plan.units, o);
  plan.collectives = plan_collectives(plan.units, o);
  const int64_t tokens = o.batch * o.seq * o.micro_batches;
  plan.tokens_per_step = tokens * o.ranks;
  ModelConfig as_run = o.model;
  as_run.seq = o.seq;
  // Positions are looked up, so a shorter table changes nothing else.
  plan.flops_per_step = flops_per_token(as_run) * static_cast<double>(tokens);
  return plan;
}

}  // namespace tessera::train
