#include <algorithm>
#include <utility>

#include "tessera/module/backward_end.h"
#include "tessera/shard/context.h"
#include "tessera/shard/trace_range.h"

// A backward pass: begun, its reductions issued in one order, finished.

namespace tessera {

void ShardContext::ensure_backward() {
  if (backward_running_) return;
  gathers_.begin_backward();
  // What is gathered when backward begins is so on all ranks.
  for (Unit* unit : units_) {
    if (unit->gathered()) note_part(*unit);
  }
  backward_running_ = true;
  backward_unit_ = nullptr;
  // They keep the context alive.
  at_backward_end([self = shared_from_this()] { self->finish_backward(); },
                  [self = shared_from_this()] { self->abandon_backward(); });
}

// First gathered, last reduced: the order in which backward completes units,
// roughly, and the same on all ranks. Those that joined while backward was
// already running come at its end.
std::vector<Unit*> ShardContext::reduction_order() const {
  std::vector<Unit*> order;
  for (Unit* unit : units_) {
    if (unit->pass.took_part && unit->gradient_sync && unit->trainable()) {
      order.push_back(unit);
    }
  }
  std::stable_sort(order.begin(), order.end(), [](Unit* a, Unit* b) {
    if (a->pass.joined_late != b->pass.joined_late) return b->pass.joined_late;
    return a->first_gather > b->first_gather;
  });
  return order;
}

void ShardContext::issue_reductions() { issue_reductions(Issue::complete); }

namespace {

// Those up to the last complete one: backward has left those before it, and
// what this rank lacks of them others may have summed already. But one without
// any gradient may come in another order this time.
size_t num_due(const std::vector<Unit*>& order) {
  size_t due = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Unit& unit = *order[i];
    if (unit.pass.joined_late) break;
    const bool has_begun = unit.pass.reduced || unit.holds_gradients();
    if (!unit.complete() && !has_begun) break;
    if (unit.complete()) due = i + 1;
  }
  return due;
}

}  // namespace

void ShardContext::issue_reductions(Issue which) {
  const auto order = reduction_order();
  const size_t due = which == Issue::all ? order.size() : num_due(order);
  for (size_t i = 0; i < due; ++i) {
    Unit* unit = order[i];
    if (unit->pass.reduced && !unit->holds_gradients()) continue;
    // On a GPU the compute would wait for the others' sums before they had any
    // time.
    const bool hides_nothing =
        !lanes_->device.is_cpu() && gathers_.is_small(*unit);
    if (!hides_nothing) go_on_with_reductions();
    others_may_go_on_ = hides_nothing;
    unit->start_reduce();
    // Those that are complete were freed then.
    if (!unit->has_units_below()) unit->release_on_completion();
  }
}

void ShardContext::go_on_with_reductions() {
  others_may_go_on_ = false;
  for (Unit* unit : units_) unit->go_on_with_reduce();
}

// In a block whose parts are recomputed (train/llama_block.h) the first sixth
// ends before its widest values are there, and the last fifth is behind
// attention's backward, which needs much memory for itself.
void ShardContext::note_read(Unit& unit) {
  if (unit.options().backward_overlap != BackwardOverlap::tight) return;
  unit.reads.note();
  if (!gathers_.in_last_third_of_backward()) return;
  if (unit.reads.reaches(1, 6)) {
    for (Unit* other : units_) other->free_reduce_inputs();
  }
  if (unit.reads.reaches(4, 5)) gathers_.start_late(unit);
}

void ShardContext::note_gradient() {
  if (others_may_go_on_) go_on_with_reductions();
}

void ShardContext::finish_backward() {
  const TraceRange range("FSDP::root_post_backward_callback");
  try {
    gathers_.start_late();
    issue_reductions(Issue::all);
    for (Unit* unit : units_) {
      if (unit->reshard_after_backward || gathers_.expects(*unit))
        unit->reshard();
    }
    const auto order = reduction_order();
    const auto had_gradient = agree_on_gradients();
    for (Unit* unit : order) {
      const auto at = std::find(units_.begin(), units_.end(), unit);
      unit->finish_reduce(had_gradient[at - units_.begin()]);
      unit->keep_norms();  // while the sums of those behind it go on
      unit->step_at_end();
    }
    for (Unit* unit : units_) unit->end_pass();
    gathers_.end_pass();
  } catch (...) {
    abandon_backward();
    throw;
  }
  stack_.clear();
  strays_.clear();
  others_may_go_on_ = false;
  backward_running_ = false;
}

void ShardContext::abandon_backward() noexcept {
  for (Unit* unit : units_) unit->abandon_pass();
  gathers_.drop_pass();
  stack_.clear();
  strays_.clear();
  backward_unit_ = nullptr;
  others_may_go_on_ = false;
  backward_running_ = false;
}

}  // namespace tessera
