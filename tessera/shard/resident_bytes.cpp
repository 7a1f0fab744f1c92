#include "tessera/shard/resident_bytes.h"

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/gather_timeline.h"

namespace tessera {
namespace {

// One rank that owns all in the compute dtype: the full parameters are the
// shards.
bool is_its_own_master(const GroupMemory& group) {
  return group.layout.world_size() == 1 &&
         group.compute_bytes == group.master_bytes &&
         group.layout.full_numel() == group.layout.shard_numel();
}

int64_t shard_bytes(const UnitMemory& unit) {
  int64_t bytes = 0;
  for (const GroupMemory& group : unit.groups) {
    bytes += group.layout.shard_numel() * group.master_bytes;
  }
  return bytes;
}

int64_t gathered_bytes(const UnitMemory& unit) {
  int64_t bytes = 0;
  for (const GroupMemory& group : unit.groups) {
    if (is_its_own_master(group)) continue;
    bytes += group.layout.full_numel() * group.compute_bytes;
  }
  return bytes;
}

struct ReductionBytes {
  int64_t input = 0;
  int64_t received = 0;
  int64_t output = 0;
  int64_t converted = 0;  // the result once more, when the dtypes differ
};

ReductionBytes reduction_bytes(const UnitMemory& unit, ReduceBuffers buffers) {
  ReductionBytes bytes;
  for (const GroupMemory& group : unit.groups) {
    const int64_t shard = group.layout.shard_numel();
    const int64_t ranks = group.layout.world_size();
    bytes.input += group.layout.full_numel() * group.reduce_bytes;
    if (ranks > 1) bytes.output += shard * group.reduce_bytes;
    if (buffers == ReduceBuffers::until_end) {
      bytes.received += (ranks - 1) * shard * group.reduce_bytes;
    }
    if (group.reduce_bytes != group.master_bytes) {
      bytes.converted += shard * group.master_bytes;
    }
  }
  return bytes;
}

using Pass = GatherTimeline::Pass;

bool brings_gradient(const UnitVisit& visit) {
  return visit.gradient_bytes + visit.added_bytes > 0;
}

// The bytes of one step as it goes on.
class Step {
 public:
  Step(const StepMemory& plan, GatherTimeline& gathers)
      : plan_(plan), gathers_(gathers), states_(plan.units.size()) {
    now_ = plan_.optimizer_bytes;
    for (const UnitMemory& unit : plan_.units) now_ += shard_bytes(unit);
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

  void forward() {
    for (const UnitVisit& visit : plan_.visits) {
      for (size_t other = 0; other < states_.size(); ++other) {
        if (!is_around(other, visit.unit) &&
            plan_.units[other].after_forward == AfterForward::freed) {
          free(other);
        }
      }
      add(gathers_.bring(visit.unit, Pass::forward));
      add(visit.kept_bytes);
    }
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
      if (visit.backward_reads == BackwardReads::parameters) {
        add(gathers_.bring(visit.unit, Pass::backward));
      }
      add(visit.again_bytes);
      take_gradients(visit);
      add(-visit.again_bytes - visit.kept_bytes);
      if (i + 1 == plan_.visits.size()) add(-plan_.loss.left_bytes);
      if (is_complete(visit.unit)) free(visit.unit);
      start_reductions();
    }
    for (size_t unit = 0; unit < states_.size(); ++unit) free(unit);
    for (const size_t unit : order_) finish_reduction(unit);
  }

 private:
  struct State {
    int64_t awaited = 0;  // visits whose gradients have not come yet
    int64_t held = 0;     // bytes of gradients that have
    int64_t waiting = 0;  // ... of an earlier backward
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

  void free(size_t unit) { add(gathers_.free(unit)); }

  // What waits in the reduce dtype takes the new ones up.
  void take_gradients(const UnitVisit& visit) {
    State& state = states_[visit.unit];
    if (brings_gradient(visit)) --state.awaited;
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
    if (plan_.reduce_buffers == ReduceBuffers::until_next) {
      for (State& other : states_) free_input(other.reduction);
    }
    State& state = states_[unit];
    state.reduction = reduction_bytes(plan_.units[unit], plan_.reduce_buffers);
    add(state.reduction.input);  // filled from the gradients, which are there
    add(-std::exchange(state.held, 0) - std::exchange(state.waiting, 0));
    add(state.reduction.output + state.reduction.received);
  }

  // In a world of one the input is the result.
  void free_input(ReductionBytes& reduction) {
    if (reduction.output > 0) add(-std::exchange(reduction.input, 0));
  }

  void finish_reduction(size_t unit) {
    ReductionBytes& reduction = states_[unit].reduction;
    add(-reduction.received);
    add(reduction.converted);
    free_input(reduction);
    if (reduction.converted > 0) add(-reduction.input - reduction.output);
  }

  const StepMemory& plan_;
  GatherTimeline& gathers_;
  std::vector<State> states_;
  std::vector<size_t> order_;
  int64_t between_steps_ = 0;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

GatherTimeline gathers_of(const StepMemory& plan) {
  std::vector<int64_t> bytes;
  bool one_rank = true;
  for (const UnitMemory& unit : plan.units) {
    bytes.push_back(gathered_bytes(unit));
    for (const GroupMemory& group : unit.groups) {
      one_rank = one_rank && group.layout.world_size() == 1;
    }
  }
  return {std::move(bytes), one_rank ? 0 : plan.prefetch};
}

void check(const StepMemory& step) {
  const size_t count = step.units.size();
  for (const UnitMemory& unit : step.units) {
    require(!unit.parent || *unit.parent < count, [&] {
      return str("resident_bytes: no unit ", *unit.parent, " among ", count,
                 " to be a parent; count from 0.");
    });
  }
  for (const UnitVisit& visit : step.visits) {
    require(visit.unit < count, [&] {
      return str("resident_bytes: no unit ", visit.unit, " among ", count,
                 " to be visited; count from 0.");
    });
  }
}

}  // namespace

ResidentBytes resident_bytes(const StepMemory& plan) {
  check(plan);
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
  return bytes;
}

}  // namespace tessera
