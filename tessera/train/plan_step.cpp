#include "tessera/train/plan_step.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/peer_rounds.h"

namespace tessera::train {
namespace {

constexpr int64_t kMoments = 2;  // of AdamW

int64_t bytes_of(Precision dtype) {
  return dtype == Precision::bfloat16 ? 2 : 4;
}

GroupMemory group_of(const std::vector<std::vector<int64_t>>& shapes,
                     GatherForm form, const PlanOptions& o) {
  const int64_t ranks = shard_shape(o.shard, o.ranks).ranks;
  return {.layout = plan_flat_layout(shapes, {.world_size = ranks,
                                              .compute_bytes = compute_bytes(o),
                                              .reduce_bytes = reduce_bytes(o)}),
          .compute_bytes = compute_bytes(o),
          .reduce_bytes = reduce_bytes(o),
          .sent_bytes = sent_bytes(o),
          .form = form};
}

bool is_embedding(const std::string& unit) {
  return unit == "embed_tokens" || unit == "wte" || unit == "wpe";
}

class StepBuilder {
 public:
  StepBuilder(const std::vector<UnitPlan>& units, const PlanOptions& o)
      : units_(units), shapes_(unit_shapes(o.model)), o_(o) {
    add_unit(units_.size() - 1);
    step_.units[0].after_forward = after_forward(Kind::root);
    for (size_t i = 0; i + 1 < units_.size(); ++i) {
      if (units_[i].name == "lm_head") visit_root();
      for (int64_t n = 0; n < units_[i].count; ++n) {
        add_unit(i);
        step_.units.back().parent = 0;
        step_.visits.push_back(visit_of(i, step_.units.size() - 1));
      }
    }
    if (o.model.tied) share_embedding();
    for (const UnitMemory& unit : step_.units) {
      step_.optimizer_bytes += kMoments * shard_bytes(unit);
    }
    step_.reduce_buffers = o.kernels == Kernels::cuda
                               ? ReduceBuffers::until_next
                               : ReduceBuffers::until_end;
    step_.prefetch = static_cast<size_t>(
        o.shard.prefetch.value_or(o.kernels == Kernels::cuda ? 1 : 0));
    step_.replicas = o.shard.replicas;
    step_.backward_overlap = o.shard.backward_overlap;
    step_.visits_of_a_copy = blocks_of_a_copy(o.model);
    step_.masters = masters_of(o);
    step_.optimizer_step = o.optimizer_step;
  }

  [[nodiscard]] StepPlan take() {
    return {std::move(step_), std::move(plan_index_)};
  }

 private:
  enum class Kind { root, other };
  /// One rank that keeps is never, all ranks are always.
  [[nodiscard]] AfterForward after_forward(Kind kind) const {
    const int64_t keepers = o_.shard.reshard_ranks;
    const auto policy = o_.shard.reshard;
    if (keepers > 1) {
      return keepers == shard_shape(o_.shard, o_.ranks).ranks
                 ? AfterForward::freed
                 : AfterForward::kept_in_parts;
    }
    const bool kept =
        keepers == 1 || policy == ReshardPolicy::never ||
        (policy == ReshardPolicy::automatic && kind == Kind::root);
    return kept ? AfterForward::kept : AfterForward::freed;
  }

  void add_unit(size_t i) {
    step_.units.push_back(
        {.groups = groups_of(shapes_[i], o_),
         .after_forward = after_forward(Kind::other),
         .keepers = std::max<int64_t>(1, o_.shard.reshard_ranks)});
    plan_index_.push_back(i);
  }

  [[nodiscard]] UnitVisit visit_of(size_t i, size_t unit) const {
    const bool reads = !is_embedding(units_[i].name) &&
                       !(units_[i].name == "lm_head" && fused());
    return {.unit = unit,
            .gradient_bytes = units_[i].numel * compute_bytes(o_),
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

}  // namespace

int64_t compute_bytes(const PlanOptions& o) {
  return bytes_of(o.shard.param_dtype);
}
int64_t reduce_bytes(const PlanOptions& o) {
  return bytes_of(o.shard.reduce_dtype);
}

bool goes_by_copy_engines(const PlanOptions& o) {
  const int64_t ranks = shard_shape(o.shard, o.ranks).ranks;
  return o.transport == Transport::copy_engines &&
         o.kernels == Kernels::cuda && ranks > 1 && ranks <= kMostPeerRanks;
}

// What waits for a later micro-batch is in the reduce dtype.
int64_t sent_bytes(const PlanOptions& o) {
  const bool sums_as_float =
      o.kernels == Kernels::cpu || goes_by_copy_engines(o);
  const bool as_computed = sums_as_float && o.micro_batches == 1 &&
                           shard_shape(o.shard, o.ranks).ranks > 1 &&
                           o.shard.reduce_dtype == Precision::float32;
  return as_computed ? compute_bytes(o) : reduce_bytes(o);
}

Masters masters_of(const PlanOptions& o) {
  const bool offloaded =
      o.shard.offload != Offload::none && o.kernels == Kernels::cuda;
  return offloaded ? Masters::on_host : Masters::on_device;
}

std::vector<GroupMemory> groups_of(const UnitShapes& unit,
                                   const PlanOptions& o) {
  if (o.shard.gather_dtype == GatherDtype::param_dtype) {
    return {group_of(unit.shapes, GatherForm::compute_dtype, o)};
  }
  std::vector<std::vector<int64_t>> matrices, vectors;
  for (const auto& shape : unit.shapes) {
    (shape.size() >= 2 ? matrices : vectors).push_back(shape);
  }
  std::vector<GroupMemory> groups;
  if (!matrices.empty()) {
    groups.push_back(group_of(matrices, GatherForm::float8, o));
  }
  if (!vectors.empty()) {
    groups.push_back(group_of(vectors, GatherForm::compute_dtype, o));
  }
  return groups;
}

bool is_block(const std::string& unit) {
  return unit == "layers" || unit == "h";
}

StepPlan plan_step(const std::vector<UnitPlan>& units, const PlanOptions& o) {
  return StepBuilder(units, o).take();
}

}  // namespace tessera::train
