#include "tessera/train/plan.h"

#include <algorithm>
#include <utility>

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
  require<InvalidArgument>(o.prefetch >= 0, [&] {
    return str("plan: prefetch is ", o.prefetch, "; give 0 or more.");
  });
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

int64_t sum_of(const std::vector<UnitPlan>& units,
               int64_t UnitPlan::*elements) {
  int64_t sum = 0;
  for (const UnitPlan& unit : units) sum += unit.count * unit.*elements;
  return sum;
}

bool is_embedding(const std::string& unit) {
  return unit == "embed_tokens" || unit == "wte" || unit == "wpe";
}

bool is_block(const std::string& unit) {
  return unit == "layers" || unit == "h";
}

/// What the engine holds as a step goes on, without activations.
///
/// Unit 0 is the root; the others are visited one after the other, and the
/// root, which has the last norm, before the head.
class StepPlan {
 public:
  StepPlan(const std::vector<UnitPlan>& units, const PlanOptions& o)
      : units_(units), shapes_(unit_shapes(o.model)), o_(o) {
    add_unit(units_.size() - 1);
    step_.units[0].after_forward = after_forward(o.reshard, Kind::root);
    for (size_t i = 0; i + 1 < units_.size(); ++i) {
      if (units_[i].name == "lm_head") visit_root();
      for (int64_t n = 0; n < units_[i].count; ++n) {
        add_unit(i);
        step_.units.back().parent = 0;
        step_.visits.push_back(visit_of(i, step_.units.size() - 1));
      }
    }
    if (o.model.tied) share_embedding();
    step_.optimizer_bytes =
        kMoments * sum_of(units_, &UnitPlan::shard_numel) * kMasterBytes;
    step_.reduce_buffers = o.kernels == Kernels::cuda
                               ? ReduceBuffers::until_next
                               : ReduceBuffers::until_end;
    step_.prefetch = static_cast<size_t>(o.prefetch);
  }

  [[nodiscard]] const StepMemory& step() const { return step_; }
  /// Index into the plan's units of each of the step's.
  [[nodiscard]] const std::vector<size_t>& plan_index() const {
    return plan_index_;
  }

 private:
  enum class Kind { root, other };
  static AfterForward after_forward(PlanReshard reshard, Kind kind) {
    const bool kept = reshard == PlanReshard::never ||
                      (reshard == PlanReshard::automatic && kind == Kind::root);
    return kept ? AfterForward::kept : AfterForward::freed;
  }

  void add_unit(size_t i) {
    step_.units.push_back(
        {.groups = {{.layout = layout_of(shapes_[i], o_),
                     .compute_bytes = o_.compute_bytes,
                     .reduce_bytes = o_.reduce_bytes}},
         .after_forward = after_forward(o_.reshard, Kind::other)});
    plan_index_.push_back(i);
  }

  [[nodiscard]] UnitVisit visit_of(size_t i, size_t unit) const {
    const bool reads = !is_embedding(units_[i].name) &&
                       !(units_[i].name == "lm_head" && fused());
    return {.unit = unit,
            .gradient_bytes = units_[i].numel * o_.compute_bytes,
            .backward_reads =
                reads ? BackwardReads::parameters : BackwardReads::nothing};
  }

  void visit_root() { step_.visits.push_back(visit_of(units_.size() - 1, 0)); }

  /// The head is the embedding once more: its gradient comes first.
  void share_embedding() {
    visit_root();
    UnitVisit& embedding = step_.visits.front();
    UnitVisit head = embedding;
    if (!fused()) head.backward_reads = BackwardReads::parameters;
    embedding.added_bytes = std::exchange(embedding.gradient_bytes, 0);
    step_.visits.push_back(head);
  }

  [[nodiscard]] bool fused() const {
    return o_.model.architecture == Architecture::llama &&
           o_.model.kernels == ModelKernels::fused;
  }

  const std::vector<UnitPlan>& units_;
  const std::vector<UnitShapes> shapes_;
  const PlanOptions& o_;
  StepMemory step_;
  std::vector<size_t> plan_index_;
};

ForwardShape forward_shape(const PlanOptions& o) {
  return {.batch = o.batch,
          .seq = o.seq,
          .compute_bytes = o.compute_bytes,
          .kernels = o.kernels};
}

/// The step with what autograd keeps, and with gradients that wait.
StepMemory with_activations(StepMemory step, const std::vector<UnitPlan>& units,
                            const std::vector<size_t>& plan_index,
                            const PlanOptions& o) {
  const ActivationBytes bytes = activations_of(o.model, forward_shape(o));
  const LogitsBytes logits = logits_bytes(o.model, forward_shape(o));
  for (UnitVisit& visit : step.visits) {
    if (is_block(units[plan_index[visit.unit]].name)) {
      visit.kept_bytes = bytes.block;
      visit.again_bytes = bytes.again;
    } else if (visit.unit == 0) {
      visit.kept_bytes = bytes.norm;
    }
    if (o.micro_batches > 1) {
      visit.waiting_bytes =
          visit.gradient_bytes / o.compute_bytes * o.reduce_bytes;
    }
  }
  step.visits.front().kept_bytes = bytes.embedding;
  step.visits.back().kept_bytes += bytes.head;
  step.loss = {.kept_bytes = logits.kept,
               .peak_bytes = logits.peak,
               .left_bytes = logits.left};
  return step;
}

MemoryPlan plan_memory(const std::vector<UnitPlan>& units, const StepPlan& plan,
                       const ResidentBytes& resident, const PlanOptions& o) {
  const int64_t shards = sum_of(units, &UnitPlan::shard_numel) * kMasterBytes;
  MemoryPlan m{.parameters = shards,
               .gradients = shards,
               .optimizer = plan.step().optimizer_bytes,
               .tables = table_bytes(o.model),
               .gathered = resident.gathered_peak};
  m.reducing = std::max<int64_t>(
      0, resident.backward_peak - m.parameters - m.gradients - m.optimizer);
  if (o.micro_batches > 1) {
    m.waiting = sum_of(units, &UnitPlan::numel) * o.reduce_bytes;
  }
  m.activations = activation_bytes(o.model, forward_shape(o));
  m.logits = logits_bytes(o.model, forward_shape(o)).peak;
  const ResidentBytes whole = resident_bytes(
      with_activations(plan.step(), units, plan.plan_index(), o));
  m.peak = whole.peak() + m.tables;
  return m;
}

std::vector<CollectivePlan> plan_collectives(const std::vector<UnitPlan>& units,
                                             const StepPlan& plan,
                                             const ResidentBytes& resident,
                                             const PlanOptions& o) {
  if (o.ranks == 1) return {};
  CollectivePlan gather{.name = "all-gather"};
  CollectivePlan reduce{.name = "reduce-scatter"};
  for (size_t i = 0; i < plan.plan_index().size(); ++i) {
    const UnitPlan& unit = units[plan.plan_index()[i]];
    const int64_t gathers = resident.num_gathers[i] * o.micro_batches;
    gather.calls += gathers;
    gather.bytes += gathers * unit.full_numel * o.compute_bytes;
    reduce.calls += 1;
    reduce.bytes += unit.full_numel * o.reduce_bytes;
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
  const StepPlan step(plan.units, o);
  const ResidentBytes resident = resident_bytes(step.step());
  plan.memory = plan_memory(plan.units, step, resident, o);
  plan.collectives = plan_collectives(plan.units, step, resident, o);
  const int64_t tokens = o.batch * o.seq * o.micro_batches;
  plan.tokens_per_step = tokens * o.ranks;
  ModelConfig as_run = o.model;
  as_run.seq = o.seq;
  // Positions are looked up, so a shorter table changes nothing else.
  plan.flops_per_step = flops_per_token(as_run) * static_cast<double>(tokens);
  return plan;
}

}  // namespace tessera::train
