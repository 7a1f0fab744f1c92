#include "tessera/shard/resident_bytes.h"

#include <algorithm>
#include <utility>

#include "tessera/module/offload_timeline.h"
#include "tessera/shard/check_step_memory.h"
#include "tessera/shard/gather_timeline.h"

namespace tessera {
namespace {

using Pass = GatherTimeline::Pass;

bool brings_gradient(const UnitVisit& visit) {
  return visit.gradient_bytes + visit.added_bytes > 0;
}

// The bytes of one step as it goes on.
class Step {
 public:
  Step(const StepMemory& plan, GatherTimeline& gathers)
      : plan_(plan),
        gathers_(gathers),
        states_(plan.units.size()),
        offloads_(plan.visits_of_a_copy) {
    if (on_device()) {
      now_ = plan_.optimizer_bytes;
      for (const UnitMemory& unit : plan_.units) now_ += shard_bytes(unit);
    }
    between_steps_ = now_;
    for (const UnitVisit& visit : plan_.visits) {
      State& state = states_[visit.unit];
      if (brings_gradient(visit)) ++state.awaited;
      state.waiting += visit.waiting_bytes;
      now_ += visit.waiting_bytes;
      if (!std::exchange(state.visited, true)) order_.push_back(visit.unit);
    }
    std::reverse(order_.begin(), order_.end());  // that of the reductions
    peak_ = now_;
  }

  [[nodiscard]] int64_t between_steps() const { return between_steps_; }
  [[nodiscard]] int64_t now() const { return now_; }
  /// Since the start or the last call.
  int64_t take_peak() { return std::exchange(peak_, now_); }
  [[nodiscard]] int64_t parts_peak() const { return parts_peak_; }
  [[nodiscard]] std::vector<int64_t> num_gathers_of_parts() const {
    std::vector<int64_t> counts;
    for (const State& state : states_) counts.push_back(state.gathers_of_parts);
    return counts;
  }

  void forward() {
    for (const UnitVisit& visit : plan_.visits) {
      for (size_t other = 0; other < states_.size(); ++other) {
        if (!is_around(other, visit.unit) &&
            plan_.units[other].after_forward != AfterForward::kept) {
          leave_forward(other);
        }
      }
      bring(visit.unit, Pass::forward);
      add(visit.kept_bytes);
      add(-offloads_.keep(visit.offloaded_bytes));
    }
    add(-offloads_.end_forward());
    spike(plan_.loss.peak_bytes);
    add(plan_.loss.kept_bytes);
  }

  void backward() {
    add(-plan_.loss.kept_bytes);
    spike(plan_.loss.peak_bytes);
    add(plan_.loss.left_bytes);
    for (size_t i = plan_.visits.size(); i-- > 0;) {
      const UnitVisit& visit = plan_.visits[i];
      for (size_t other = 0; other < states_.size(); ++other) {
        if (!is_around(other, visit.unit) && is_complete(other)) free(other);
      }
      const bool reads = visit.backward_reads == BackwardReads::parameters;
      if (reads) bring(visit.unit, Pass::backward);
      if (reads && gathers_.starts_late()) free_inputs();
      add(offloads_.come_back(i) + visit.again_bytes);
      take_gradients(visit);
      add(-visit.again_bytes - visit.kept_bytes);
      if (i + 1 == plan_.visits.size()) add(-plan_.loss.left_bytes);
      if (gathers_.starts_late()) add(gathers_.start_next());
      if (is_complete(visit.unit)) free(visit.unit);
      start_reductions();
    }
    for (size_t unit = 0; unit < states_.size(); ++unit) {
      free(unit);
      drop_part(states_[unit]);
    }
    for (const size_t unit : order_) finish_reduction(unit);
  }

 private:
  struct State {
    int64_t awaited = 0;  // visits whose gradients have not come yet
    int64_t held = 0;     // bytes of gradients that have
    int64_t waiting = 0;  // ... of an earlier backward
    int64_t part = 0;     // bytes kept of the full parameters
    int64_t gathers_of_parts = 0;
    bool visited = false;
    ReductionBytes reduction;
  };

  void add(int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }

  void spike(int64_t bytes) {
    add(bytes);
    add(-bytes);
  }

  [[nodiscard]] bool is_around(size_t outer, size_t inner) const {
    for (std::optional<size_t> unit = inner; unit;
         unit = plan_.units[*unit].parent) {
      if (*unit == outer) return true;
    }
    return false;
  }

  [[nodiscard]] bool is_complete(size_t unit) const {
    return states_[unit].awaited == 0;
  }

  [[nodiscard]] bool on_device() const {
    return plan_.masters == Masters::on_device;
  }

  // A part that was kept is there until the whole is, or backward ends.
  void bring(size_t unit, Pass pass) {
    const int64_t added = gathers_.bring(unit, pass);
    add(added);
    if (added > 0) spike(travel_bytes(plan_.units[unit]));
    State& state = states_[unit];
    if (pass == Pass::backward && state.part > 0) ++state.gathers_of_parts;
    drop_part(state);
  }

  void drop_part(State& state) {
    parts_ -= state.part;
    add(-std::exchange(state.part, 0));
  }

  void leave_forward(size_t unit) {
    const bool in_parts =
        plan_.units[unit].after_forward == AfterForward::kept_in_parts;
    if (in_parts && gathers_.is_in_use(unit)) {
      states_[unit].part = part_bytes(plan_.units[unit]);
      add(states_[unit].part);
      parts_ += states_[unit].part;
      parts_peak_ = std::max(parts_peak_, parts_);
    }
    add(in_parts ? gathers_.free(unit) : gathers_.leave_forward(unit));
  }

  void free(size_t unit) { add(gathers_.free(unit)); }

  // What waits in the reduce dtype takes the new ones up.
  void take_gradients(const UnitVisit& visit) {
    State& state = states_[visit.unit];
    if (brings_gradient(visit)) {
      --state.awaited;
      if (others_may_go_on_) free_inputs();
    }
    add(visit.gradient_bytes);
    state.held += visit.gradient_bytes;
    spike(2 * visit.added_bytes);  // it, and the sum, which replaces both
    if (is_complete(visit.unit) && state.waiting > 0) {
      add(-std::exchange(state.held, 0));
    }
  }

  void start_reductions() {
    for (const size_t unit : order_) {
      if (!is_complete(unit)) return;
      if (states_[unit].held + states_[unit].waiting > 0) start_reduction(unit);
    }
  }

  void start_reduction(size_t unit) {
    others_may_go_on_ = plan_.reduce_buffers == ReduceBuffers::until_next &&
                        gathers_.is_small(unit);
    if (!others_may_go_on_) {
      free_inputs();
      step_those_that_may();
    }
    State& state = states_[unit];
    state.reduction = reduction_bytes(plan_.units[unit], plan_.reduce_buffers,
                                      plan_.replicas);
    add(state.reduction.input);  // filled from the gradients, which are there
    add(-std::exchange(state.held, 0) - std::exchange(state.waiting, 0));
    add(state.reduction.output + state.reduction.received);
  }

  // On a CPU they stay until the end.
  void free_inputs() {
    others_may_go_on_ = false;
    if (plan_.reduce_buffers == ReduceBuffers::until_end) return;
    for (State& state : states_) free_input(state.reduction);
  }

  // Nothing is left of the sum over the shard axis by then. On a CPU the second
  // sums come at the end of backward, one after the other; on a GPU they are in
  // place.
  void sum_over_replicas(ReductionBytes& reduction) {
    if (plan_.replicas == 1) return;
    add(reduction.from_replicas - reduction.received);
    reduction.received = reduction.from_replicas;
  }

  // In a world of one the input is the result.
  void free_input(ReductionBytes& reduction) {
    if (reduction.output > 0) add(-std::exchange(reduction.input, 0));
  }

  // Only what is being reduced has an output.
  void step_those_that_may() {
    if (plan_.optimizer_step == OptimizerStep::after_backward) return;
    for (size_t unit = 0; unit < states_.size(); ++unit) {
      State& state = states_[unit];
      if (!is_complete(unit) || state.reduction.output == 0) continue;
      if (plan_.replicas > 1) continue;
      finish_reduction(unit);
      const ReductionBytes done = std::exchange(state.reduction, {});
      if (on_device()) add(-std::max(done.converted, done.output));
    }
  }

  void finish_reduction(size_t unit) {
    ReductionBytes& reduction = states_[unit].reduction;
    sum_over_replicas(reduction);
    add(-reduction.received);
    const int64_t converted = on_device() ? reduction.converted : 0;
    add(converted);
    free_input(reduction);
    if (converted > 0 || !on_device()) {
      add(-reduction.input - std::exchange(reduction.output, 0));
    }
  }

  const StepMemory& plan_;
  GatherTimeline& gathers_;
  std::vector<State> states_;
  std::vector<size_t> order_;
  OffloadTimeline offloads_;
  bool others_may_go_on_ = false;  // as in ShardContext
  int64_t between_steps_ = 0;
  int64_t parts_ = 0;
  int64_t parts_peak_ = 0;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

GatherTimeline gathers_of(const StepMemory& plan) {
  std::vector<int64_t> bytes;
  bool one_rank = true;
  for (const UnitMemory& unit : plan.units) {
    bytes.push_back(gathered_bytes(unit, plan.masters));
    for (const GroupMemory& group : unit.groups) {
      one_rank = one_rank && group.layout.world_size() == 1;
    }
  }
  return {std::move(bytes), one_rank ? 0 : plan.prefetch,
          plan.backward_overlap};
}

}  // namespace

ResidentBytes resident_bytes(const StepMemory& plan) {
  check_step_memory(plan);
  GatherTimeline gathers = gathers_of(plan);
  Step first(plan, gathers);
  first.forward();
  first.backward();
  gathers.end_step();

  Step step(plan, gathers);
  ResidentBytes bytes{.between_steps = step.between_steps()};
  step.forward();
  bytes.after_forward = step.now();
  bytes.forward_peak = step.take_peak();
  step.backward();
  bytes.backward_peak = step.take_peak();
  bytes.after_backward = step.now();
  bytes.gathered_peak = gathers.peak();
  bytes.num_gathers = gathers.num_gathers();
  bytes.parts_peak = step.parts_peak();
  bytes.num_gathers_of_parts = step.num_gathers_of_parts();
  return bytes;
}

}  // namespace tessera
