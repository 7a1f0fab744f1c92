#include "tessera/shard/context.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/module/recompute.h"
#include "tessera/shard/step_phase.h"

namespace tessera {

namespace {

template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

GatherAhead::Next next_in_backward(const Unit& unit) {
  return unit.options().backward_overlap == BackwardOverlap::tight
             ? GatherAhead::Next::late_at_the_end
             : GatherAhead::Next::now;
}

// Gathers without any backward after which the ranks' hashes are compared.
constexpr int64_t kGathersPerCheck = 256;

}  // namespace

void ShardContext::set_lanes(std::shared_ptr<const ShardLanes> lanes) {
  lanes_ = std::move(lanes);
  for (Unit* unit : units_) unit->set_context(shared_from_this());
}

void ShardContext::add(Unit& unit) {
  gathers_.forget_orders();
  units_.push_back(&unit);
}

void ShardContext::remove(Unit& unit) noexcept {
  for (auto* list : {&units_, &stack_, &strays_}) {
    list->erase(std::remove(list->begin(), list->end(), &unit), list->end());
  }
  gathers_.remove(unit);
  if (backward_unit_ == &unit) backward_unit_ = nullptr;
  gathers_.forget_orders();
}

void ShardContext::absorb(ShardContext& other) {
  gathers_.forget_orders();
  other.gathers_.forget_orders();
  for (Unit* unit : std::exchange(other.units_, {})) {
    unit->reshard();
    unit->set_context(shared_from_this());
    units_.push_back(unit);
    if (unit->first_gather >= 0) unit->first_gather = num_first_gathers_++;
  }
  other.stack_.clear();
  other.strays_.clear();
}

// Operators -------------------------------------------------------------------

void ShardContext::enter(Unit& unit, const OperatorUse& use) {
  const auto me = std::this_thread::get_id();
  std::thread::id running_thread{};  // none
  require<InvalidState>(
      thread_.load() == me ||
          thread_.compare_exchange_strong(running_thread, me),
      [&] {
        return str(use.name, " on a second thread reads parameters of unit '",
                   unit.name(),
                   "' while another thread is running operators of the "
                   "same sharded model. Use it from one thread at a time.");
      });
  ++running_;
  try {
    if (in_backward()) {
      touch_backward(unit, use);
    } else {
      touch_forward(unit, use);
    }
  } catch (...) {
    leave();
    throw;
  }
}

void ShardContext::leave() noexcept {
  if (--running_ == 0) thread_ = std::thread::id{};
}

void ShardContext::touch_forward(Unit& unit, const OperatorUse& use) {
  require<InvalidState>(
      !unit.options().mp_policy.output_dtype || unit.calls_under_way > 0 ||
          in_second_run(),  // the first run was checked
      [&] {
        return str("unit '", unit.name(),
                   "' has an output_dtype, which acts at "
                   "the module's boundary: call it as call(module, inputs...) "
                   "instead of module->forward(inputs...).");
      });
  if (in_second_run()) check_before_backward(unit);
  if (in_training()) {
    note_part(unit);
  } else if (unit.a_rank_owns_nothing()) {
    // In evaluation nothing else tells all ranks alike that a copy is stale.
    unit.reshard();
  }
  if (!stack_.empty() && stack_.back() == &unit && strays_.empty() &&
      unit.gathered() && !unit.stale() && !unit.gathering()) {
    return;
  }
  const auto needed = [&](Unit* other) {
    return other == &unit ||
           contains(use.owners, static_cast<StorageOwner*>(other));
  };
  for (Unit* stray : std::exchange(strays_, {})) {
    if (needed(stray)) {
      if (stray != &unit) strays_.push_back(stray);
    } else if (!contains(stack_, stray)) {
      leave_forward(*stray);
    }
  }
  while (!stack_.empty() && !stack_.back()->is_ancestor_of(unit)) {
    Unit* top = stack_.back();
    stack_.pop_back();
    if (needed(top)) {
      strays_.push_back(top);
    } else {
      leave_forward(*top);
    }
  }
  if (stack_.empty() || stack_.back() != &unit) stack_.push_back(&unit);
  gathers_.bring(
      unit,
      in_second_run() ? GatherAhead::Pass::backward
      : in_training() ? GatherAhead::Pass::forward
                      : GatherAhead::Pass::evaluation,
      use.name,
      in_second_run() ? next_in_backward(unit) : GatherAhead::Next::now);
}

void ShardContext::leave_forward(Unit& unit) {
  const bool frees = !unit.kept_after_forward() &&
                     !unit.options().reshard_after_forward.ranks();
  const bool first_run = in_training() && !in_second_run();
  if (frees && first_run && gathers_.keep_for_backward(unit)) return;
  unit.leave_forward();
}

// Of both kinds: by backward's own operators, and by the second run of a
// recomputed region, which then gathers and frees as a forward does.
void ShardContext::check_before_backward(Unit& unit) {
  ensure_backward();
  if (unit.pass.reduced) unit.step.note_late_use(unit.name());
  require_unwritten(unit);
}

void ShardContext::touch_backward(Unit& unit, const OperatorUse& use) {
  check_before_backward(unit);
  release_others(unit, use);
  if (!unit.gathered() && unit.pass.released) {
    // Needed again after its release: later from now on.
    unit.release = unit.release == Unit::Release::on_completion
                       ? Unit::Release::on_switch
                       : Unit::Release::at_end;
    unit.pass.released = false;
  }
  note_part(unit);
  gathers_.bring(unit, GatherAhead::Pass::backward, use.name,
                 next_in_backward(unit));
  // Not what an operator calls inside.
  if (running_ == 1) note_read(unit);
}

// Units that await no (more) gradient are freed when backward goes on to
// another unit.
void ShardContext::release_others(Unit& unit, const OperatorUse& use) {
  if (backward_unit_ == &unit) return;
  backward_unit_ = &unit;
  for (Unit* other : units_) {
    if (!other->gathered() || other->is_ancestor_of(unit) ||
        contains(use.owners, static_cast<StorageOwner*>(other)) ||
        gathers_.expects(*other) || other->release == Unit::Release::at_end ||
        !other->reshard_after_backward || !other->complete()) {
      continue;
    }
    other->reshard();
    other->pass.released = true;
  }
}

void ShardContext::forget(Unit& unit) {
  for (auto* list : {&stack_, &strays_}) {
    list->erase(std::remove(list->begin(), list->end(), &unit), list->end());
  }
}

void ShardContext::note_part(Unit& unit) {
  if (unit.pass.took_part) return;
  unit.pass.took_part = true;
  unit.pass.joined_late = backward_running_;
}

void ShardContext::note_gather(Unit& unit) {
  if (unit.first_gather < 0) unit.first_gather = num_first_gathers_++;
  if (unit.lanes()->num_ranks() > 1 &&
      ++gathers_since_check_ >= kGathersPerCheck && !backward_running_) {
    (void)agree_on_gradients();
  }
}

GradientFlags ShardContext::agree_on_gradients() {
  gathers_since_check_ = 0;
  return memory_.agree(units_);
}

}  // namespace tessera
